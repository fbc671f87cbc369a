# Sourced by the scripts of the demos: what they show, and what they need. Their program takes over the steps later.

bold='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
fi
taken=0

# step NAME WHAT-TO-DO-NEXT COMMAND...
# It ends the script when the command fails. $total says how many steps there are.
step() {
  local name=$1 next=$2 began=$SECONDS status=0
  shift 2
  taken=$((taken + 1))
  printf '%s[%s/%s] %s%s\n' "$bold" "$taken" "$total" "$name" "$plain"
  "$@" || status=$?
  if [ "$status" != 0 ]; then
    printf '\n%sStep %s failed: %s%s\n  why:  see the lines above (exit code %s)\n  next: %s\n' \
      "$red" "$taken" "$name" "$plain" "$status" "$next" >&2
    exit 1
  fi
  printf '      done in %s s\n' $((SECONDS - began))
}

find_cargo() {
  command -v cargo >/dev/null && return
  [ -x "$HOME/.cargo/bin/cargo" ] && PATH="$HOME/.cargo/bin:$PATH" && return
  printf 'cargo is not there. Install Rust 1.90 or newer, then run this again.\n' >&2
  exit 1
}
