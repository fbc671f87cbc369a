//! The rules of a manifest's two lists of endpoints: what each needs of the rest of the spec, and of the other list.

use super::checker::Checker;
use super::endpoint::Endpoint;
use super::inbox::{self, Rules};
use crate::inbox_outbox::InboxOutboxSpec;
use crate::inbox_outbox::transport::Transport;
use crate::limits;
use crate::problem::shown;

pub(super) fn endpoints(checker: &mut Checker, spec: &InboxOutboxSpec) {
    let outboxes: Vec<_> = spec.outboxes.iter().map(|o| o.name.as_str()).collect();
    let inboxes: Vec<_> = spec.inboxes.iter().map(|i| i.name.as_str()).collect();
    names(checker, "spec.", &outboxes, &inboxes);
    for (index, outbox) in spec.outboxes.iter().enumerate() {
        let path = format!("spec.outboxes[{index}]");
        let named = outbox.transport.as_deref();
        chosen_transport(checker, &path, named, &spec.transports);
        Endpoint::from(outbox).check(checker, &path);
        checker.less(
            &format!("{path}.delivery.confirmTimeoutSeconds"),
            outbox.delivery.confirm_timeout_seconds,
            "spec.workers.leaseSeconds",
            spec.workers.lease_seconds,
        );
    }
    for (index, inbox) in spec.inboxes.iter().enumerate() {
        let path = format!("spec.inboxes[{index}]");
        let named = inbox.transport.as_deref();
        chosen_transport(checker, &path, named, &spec.transports);
        Rules::from(inbox).check(checker, &path);
        let function = inbox::the_one_handler(checker, &path, &inbox.handler);
        let grace = spec.workers.termination_grace_period_seconds;
        let grace = ("spec.workers.terminationGracePeriodSeconds", grace);
        inbox::check_function(checker, &path, function, grace);
    }
}

/// The names of both lists, whose paths start with `start`: one row in the database is one endpoint, whatever its direction.
pub(super) fn names(checker: &mut Checker, start: &str, outboxes: &[&str], inboxes: &[&str]) {
    let (of_outboxes, of_inboxes) = (format!("{start}outboxes"), format!("{start}inboxes"));
    checker.count(&of_outboxes, outboxes.len(), limits::OUTBOXES);
    checker.count(&of_inboxes, inboxes.len(), limits::INBOXES);
    if outboxes.is_empty() && inboxes.is_empty() {
        checker.refuse(
            &of_outboxes,
            format!(
                "is empty, and so is `{of_inboxes}`, but there must be at least one outbox or inbox"
            ),
        );
    }
    checker.unique(&of_outboxes, outboxes.iter().copied());
    checker.unique(&of_inboxes, inboxes.iter().copied());
    for (index, name) in inboxes.iter().enumerate() {
        if !name.is_empty() && outboxes.contains(name) {
            let name = shown(name);
            checker.refuse(
                &format!("{of_inboxes}[{index}].name"),
                format!("is {name} but must be a name that no entry of `{of_outboxes}` has"),
            );
        }
    }
}

fn chosen_transport(
    checker: &mut Checker,
    endpoint: &str,
    name: Option<&str>,
    transports: &[Transport],
) {
    // No transports, or one without a name, is reported where it stands; until that is mended no
    // name can be looked up.
    let named = |transport: &Transport| !transport.name.is_empty();
    if transports.is_empty() || !transports.iter().all(named) {
        return;
    }
    let path = format!("{endpoint}.transport");
    match name {
        Some(name) => checker.refers(&path, name, transports.iter().map(|t| t.name.as_str())),
        None if transports.len() > 1 => {
            let names: Vec<_> = transports.iter().map(|t| shown(&t.name)).collect();
            checker.refuse(
                &path,
                format!(
                    "is left out but must be given where there are several transports: one of {}",
                    names.join(", ")
                ),
            );
        }
        None => {}
    }
}
