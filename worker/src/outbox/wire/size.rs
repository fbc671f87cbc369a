//! How many bytes headers take on the wire.

use lapin::types::{AMQPValue, FieldTable};

/// Tag or length octets before a value.
const TAG: usize = 1;
const SHORT_LENGTH: usize = 1;
const LONG_LENGTH: usize = 4;

/// A table with its length.
pub(super) fn of_table(table: &FieldTable) -> usize {
    let entries = table.inner().iter();
    let sizes = entries.map(|(name, value)| SHORT_LENGTH + name.as_str().len() + of_value(value));
    LONG_LENGTH + sizes.sum::<usize>()
}

fn of_value(value: &AMQPValue) -> usize {
    TAG + match value {
        AMQPValue::Void => 0,
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::ShortString(text) => SHORT_LENGTH + text.as_str().len(),
        AMQPValue::LongString(text) => LONG_LENGTH + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => LONG_LENGTH + bytes.as_slice().len(),
        AMQPValue::FieldArray(items) => {
            LONG_LENGTH + items.as_slice().iter().map(of_value).sum::<usize>()
        }
        AMQPValue::FieldTable(table) => of_table(table),
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldTable};

    use super::of_table;

    #[test]
    fn a_table_takes_its_length_and_for_each_entry_name_tag_and_value() {
        let mut inner = FieldTable::default();
        inner.insert("n".into(), AMQPValue::LongLongInt(1));
        let mut table = FieldTable::default();
        table.insert("text".into(), AMQPValue::LongString("four".into()));
        table.insert("t".into(), AMQPValue::FieldTable(inner));
        let text = 1 + 4 + 1 + 4 + 4;
        let nested = 1 + 1 + 1 + (4 + 1 + 1 + 1 + 8);
        assert_eq!(of_table(&table), 4 + text + nested);
    }
}
