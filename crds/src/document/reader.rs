//! A serde deserializer over a JSON value that knows where it is and judges types strictly.

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};
use serde_json::{Map, Value};

use super::Repairs;
use super::misfit::{Misfit, child, choices};
use crate::problem::{listed, shown};

/// One value of the document and where it stands; no value means a blank of the type asked for.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    value: Option<&'a Value>,
    path: String,
    repairs: &'a Repairs,
}

impl<'a> Reader<'a> {
    /// The whole document.
    pub(crate) fn root(document: &'a Value, repairs: &'a Repairs) -> Self {
        Self {
            value: Some(document),
            path: String::new(),
            repairs,
        }
    }

    fn member(&self, key: &str, value: Option<&'a Value>) -> Self {
        Self {
            value,
            path: child(&self.path, key),
            repairs: self.repairs,
        }
    }

    fn misfit(&self, wanted: &str) -> Misfit {
        let found = match self.value {
            None | Some(Value::Null) => "null".to_owned(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Number(value)) => value.to_string(),
            Some(Value::String(text)) => shown(text),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(Value::Object(_)) => "an object".to_owned(),
        };
        Misfit::at(&self.path, format!("is {found} but must be {wanted}"))
    }

    /// Like [`Self::misfit`], for a text where an object belongs: it may be a secret, so it is not repeated.
    fn misfit_of_shape(&self, wanted: &str) -> Misfit {
        match self.value {
            Some(Value::String(_)) => {
                Misfit::at(&self.path, format!("is a text but must be {wanted}"))
            }
            _ => self.misfit(wanted),
        }
    }

    fn object(&self, fields: &[&str]) -> Result<Members<'a>, Misfit> {
        let map = match self.value {
            Some(Value::Object(map)) => Some(map),
            None => None,
            Some(_) if fields.is_empty() => return Err(self.misfit_of_shape("an object")),
            Some(_) => {
                let wanted = format!("an object with {}", listed(fields));
                return Err(self.misfit_of_shape(&wanted));
            }
        };
        let written = map
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), Some(value)))
            .filter(|(key, _)| !self.repairs.left_out.contains(&child(&self.path, key)));
        let blanks = self.repairs.blanks.get(&self.path).into_iter().flatten();
        let entries: Vec<_> = written.chain(blanks.map(|key| (*key, None))).collect();
        Ok(Members {
            reader: self.clone(),
            entries: entries.into_iter(),
            current: None,
        })
    }

    fn number(&self, largest: u64) -> Result<u64, Misfit> {
        let wanted = match self.value {
            None => return Ok(0),
            Some(Value::Number(number)) => match number.as_u64() {
                Some(value) if value <= largest => return Ok(value),
                _ => format!("a whole number between 0 and {largest}"),
            },
            Some(_) => "a whole number".to_owned(),
        };
        Err(self.misfit(&wanted))
    }
}

/// What is left to read of an object.
struct Members<'a> {
    reader: Reader<'a>,
    entries: std::vec::IntoIter<(&'a str, Option<&'a Value>)>,
    current: Option<(&'a str, Option<&'a Value>)>,
}

impl<'de> de::MapAccess<'de> for Members<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Misfit> {
        self.current = self.entries.next();
        let Some((key, _)) = self.current else {
            return Ok(None);
        };
        let name: StrDeserializer<'_, Misfit> = key.into_deserializer();
        seed.deserialize(name)
            .map(Some)
            .map_err(|misfit| misfit.or_at(&child(&self.reader.path, key)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Misfit> {
        let (key, value) = self.current.take().unwrap_or_default();
        let member = self.reader.member(key, value);
        let path = member.path.clone();
        seed.deserialize(member)
            .map_err(|misfit| misfit.or_at(&path))
    }
}

/// What is left to read of a list.
struct Items<'a> {
    reader: Reader<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'de> de::SeqAccess<'de> for Items<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Misfit> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let path = format!("{}[{index}]", self.reader.path);
        // A left-out item becomes a blank, so that the items after it keep their index.
        let left_out = self.reader.repairs.left_out.contains(&path);
        let item = Reader {
            value: (!left_out).then_some(value),
            path: path.clone(),
            repairs: self.reader.repairs,
        };
        seed.deserialize(item)
            .map(Some)
            .map_err(|misfit| misfit.or_at(&path))
    }
}

/// A choice: a text, or an object whose one member is the choice with its content.
struct Choice<'a> {
    name: &'a str,
    content: Option<Reader<'a>>,
}

impl<'de> de::EnumAccess<'de> for Choice<'de> {
    type Error = Misfit;
    type Variant = Content<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Misfit> {
        let name: StrDeserializer<'_, Misfit> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Content(self.content)))
    }
}

/// What stands beside the name of a choice.
struct Content<'a>(Option<Reader<'a>>);

impl<'de> de::VariantAccess<'de> for Content<'de> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        match self.0 {
            Some(content) if content.value.is_some() => Err(content.misfit("left out")),
            None | Some(_) => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Misfit> {
        match self.0 {
            Some(content) => {
                let path = content.path.clone();
                seed.deserialize(content)
                    .map_err(|misfit| misfit.or_at(&path))
            }
            None => Err(Misfit::unplaced(
                "is a text but must be an object with one member".to_owned(),
            )),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Misfit> {
        Err(Misfit::unplaced(
            "is a choice with several parts, which is not supported".to_owned(),
        ))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Misfit> {
        Err(Misfit::unplaced(
            "is a choice with several parts, which is not supported".to_owned(),
        ))
    }
}

impl<'de> de::Deserializer<'de> for Reader<'de> {
    type Error = Misfit;

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.value {
            None => visitor.visit_bool(false),
            Some(Value::Bool(value)) => visitor.visit_bool(*value),
            Some(_) => Err(self.misfit("true or false")),
        }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_u64(self.number(u32::MAX.into())?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        // One JSON number must mean the same everywhere: the API server stores signed numbers.
        visitor.visit_u64(self.number(i64::MAX as u64)?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_u64(self.number(i64::MAX as u64)?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.value {
            None => visitor.visit_borrowed_str(""),
            Some(Value::String(text)) => visitor.visit_borrowed_str(text),
            Some(Value::Number(_) | Value::Bool(_)) => Err(self.misfit("a text: put it in quotes")),
            Some(_) => Err(self.misfit("a text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.value {
            None => visitor.visit_none(),
            Some(Value::Null) => Err(self.misfit("left out or given a value")),
            Some(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let items = match self.value {
            None => [].iter(),
            Some(Value::Array(items)) => items.iter(),
            Some(_) => return Err(self.misfit_of_shape("a list")),
        };
        visitor.visit_seq(Items {
            items: items.enumerate(),
            reader: self,
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let members = self.object(&[])?;
        visitor.visit_map(members)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let members = self.object(fields)?;
        visitor
            .visit_map(members)
            .map_err(|misfit| misfit.or_at(&self.path))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let only_member =
            |map: &'de Map<String, Value>| map.iter().next().filter(|_| map.len() == 1);
        let (name, content) = match self.value {
            None => {
                let first = variants.first().copied().unwrap_or_default();
                (first, Some(self.member(first, None)))
            }
            Some(Value::String(name)) => (name.as_str(), None),
            Some(Value::Object(map)) => match only_member(map) {
                Some((name, value)) => (name.as_str(), Some(self.member(name, Some(value)))),
                None => return Err(self.misfit(&format!("one of {}", choices(variants)))),
            },
            Some(_) => return Err(self.misfit(&format!("one of {}", choices(variants)))),
        };
        visitor
            .visit_enum(Choice { name, content })
            .map_err(|misfit| misfit.or_at(&self.path))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    /// For what is handed on as it stands, whatever it is.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.value {
            None | Some(Value::Null) => visitor.visit_unit(),
            Some(Value::Bool(value)) => visitor.visit_bool(*value),
            Some(Value::String(text)) => visitor.visit_borrowed_str(text),
            Some(Value::Array(_)) => self.deserialize_seq(visitor),
            Some(Value::Object(_)) => self.deserialize_map(visitor),
            Some(Value::Number(number)) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
        }
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct identifier
    }
}
