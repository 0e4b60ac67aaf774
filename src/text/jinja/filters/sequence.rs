//! Filters over lists, dicts and generators.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::super::args::{Args, int_or, str_of};
use super::super::exec::Interpreter;
use super::super::text::{Builder, Text};
use super::super::value::{Items, Value};
use super::super::{Fault, ops};

impl Interpreter {
    pub(super) fn map(&mut self, value: &Value, mut args: Args) -> Result<Value, Fault> {
        let items = ops::iterate(value)?;
        self.spend(items.len())?;
        let mut out = Vec::with_capacity(items.len());
        if args.positional.is_empty()
            && let Some(path) = args.take_named("attribute")
        {
            let default = args.take_named("default");
            for item in &items {
                out.push(match (self.path(item, &path)?, &default) {
                    (Value::Undefined(_), Some(default)) => default.clone(),
                    (found, _) => found,
                });
            }
        } else {
            let name = args.take_first().ok_or_else(|| Fault::failed("map requires a filter argument"))?;
            let name = str_of(&name, "map")?;
            for item in items {
                out.push(self.filter(name.as_str(), item, args.clone())?);
            }
        }
        Value::iter_of(out)
    }

    /// `select`, `reject`, and the two of an attribute.
    pub(super) fn select(
        &mut self,
        value: &Value,
        mut args: Args,
        wanted: bool,
        attribute: bool,
    ) -> Result<Value, Fault> {
        let missing = || Fault::failed("the name of an attribute is missing");
        let path = if attribute { Some(args.take_first().ok_or_else(missing)?) } else { None };
        let test = args.take_first().map(|test| str_of(&test, "select")).transpose()?;
        let items = ops::iterate(value)?;
        self.spend(items.len())?;
        let mut out = Vec::new();
        for item in items {
            let subject = match &path {
                Some(path) => self.path(&item, path)?,
                None => item.clone(),
            };
            let holds = match &test {
                Some(test) => self.check(test.as_str(), &subject, args.clone())?,
                None => subject.is_true(),
            };
            if holds == wanted {
                out.push(item);
            }
        }
        Value::iter_of(out)
    }

    /// `a.b.0` of a value, as filters name attributes.
    fn path(&mut self, value: &Value, path: &Value) -> Result<Value, Fault> {
        let Value::Str(path) = path else { return self.item(value, path) };
        let mut found = value.clone();
        for part in path.as_str().split('.') {
            let index = if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
                part.parse().map_or_else(|_| Value::own(part), Value::Int)
            } else {
                Value::own(part)
            };
            found = self.item(&found, &index)?;
        }
        Ok(found)
    }

    /// What an item is compared by: its attribute, in lower case unless case counts.
    fn sort_key(&mut self, item: &Value, path: Option<&Value>, case: bool) -> Result<Value, Fault> {
        let key = match path {
            Some(path) => self.path(item, path)?,
            None => item.clone(),
        };
        Ok(match key {
            Value::Str(text) if !case => Value::Str(text.map(str::to_lowercase)?),
            key => key,
        })
    }

    pub(super) fn sequence_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value, Fault> {
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let some = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None));
        match name {
            "items" => {
                args.none(name)?;
                match value {
                    Value::Undefined(_) => Value::iter_of(Vec::new()),
                    Value::Dict(dict) => {
                        let items: Result<Vec<_>, Fault> =
                            dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect();
                        Value::iter_of(items?)
                    }
                    _ => Err(Fault::failed("Can only get item pairs from a mapping.")),
                }
            }
            "dictsort" => {
                let [case, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
                let by = by.map_or_else(|| Ok(Text::own("key")), |by| by.text())?;
                let at = match by.as_str() {
                    "key" => 0,
                    "value" => 1,
                    _ => return Err(Fault::failed("You can only sort by either \"key\" or \"value\"")),
                };
                let Value::Dict(dict) = value else { return Err(Fault::failed("dictsort wants a dict")) };
                let pairs: Result<Vec<_>, Fault> =
                    dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect();
                let (case, path) = (is_true(case), Value::Int(at));
                let sorted = self.sorted(pairs?, &[Some(path)], case, is_true(reverse))?;
                Value::list(sorted)
            }
            "list" => {
                args.none(name)?;
                Value::list(ops::iterate(value)?)
            }
            "first" => {
                args.none(name)?;
                let nothing = || Value::undefined("No first item, sequence was empty.");
                if let Value::Iter(iter) = value {
                    return Ok(iter.items.borrow_mut().pop_front().unwrap_or_else(nothing));
                }
                Ok(ops::iterate(value)?.into_iter().next().unwrap_or_else(nothing))
            }
            "last" | "random" => {
                args.none(name)?;
                if matches!(value, Value::Iter(_)) {
                    return Err(Fault::failed("'generator' object is not reversible"));
                }
                if name == "random" {
                    return Err(Fault::failed("random is not supported: a prompt is the same each time"));
                }
                let last = ops::iterate(value)?.pop();
                Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
            }
            "join" => {
                let [separator, path] = args.bind(name, ["d", "attribute"])?;
                let separator = separator.map_or_else(|| Ok(Text::default()), |separator| separator.text())?;
                let items = ops::iterate(value)?;
                self.spend(items.len())?;
                let path = some(path);
                let mut out = Builder::default();
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push_text(&separator);
                    }
                    match &path {
                        Some(path) => self.path(item, path)?.print(&mut out)?,
                        None => item.print(&mut out)?,
                    }
                }
                out.finish().map(Value::Str)
            }
            "reverse" => {
                args.none(name)?;
                let mut items = ops::iterate(value)?;
                items.reverse();
                if !matches!(value, Value::Str(_)) {
                    return Value::iter_of(items);
                }
                let mut out = Builder::default();
                for item in &items {
                    item.print(&mut out)?;
                }
                out.finish().map(Value::Str)
            }
            "sort" => {
                let [reverse, case, path] = args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
                let paths: Vec<Option<Value>> = match some(path) {
                    Some(Value::Str(path)) => {
                        path.as_str().split(',').map(|path| Some(Value::own(path.trim()))).collect()
                    }
                    path => vec![path],
                };
                let sorted = self.sorted(ops::iterate(value)?, &paths, is_true(case), is_true(reverse))?;
                Value::list(sorted)
            }
            "unique" => {
                let [case, path] = args.bind(name, ["case_sensitive", "attribute"])?;
                let (case, path) = (is_true(case), some(path));
                let mut seen = HashSet::new();
                let mut out = Vec::new();
                for item in ops::iterate(value)? {
                    if seen.insert(self.sort_key(&item, path.as_ref(), case)?.key()?) {
                        out.push(item);
                    }
                }
                Value::iter_of(out)
            }
            "min" | "max" => {
                let [case, path] = args.bind(name, ["case_sensitive", "attribute"])?;
                let sorted = self.sorted(ops::iterate(value)?, &[some(path)], is_true(case), name == "max")?;
                Ok(sorted
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| Value::undefined("No aggregated item, sequence was empty.")))
            }
            "sum" => {
                let [path, start] = args.bind(name, ["attribute", "start"])?;
                let path = some(path);
                let mut sum = start.unwrap_or(Value::Int(0));
                for item in ops::iterate(value)? {
                    let item = match &path {
                        Some(path) => self.path(&item, path)?,
                        None => item,
                    };
                    self.spend_size(&sum)?;
                    sum = ops::binary(super::super::ast::Binary::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            "batch" => {
                let [count, fill] = args.bind(name, ["linecount", "fill_with"])?;
                let count = usize::try_from(int_or(count, 0, name)?).unwrap_or(0);
                let mut rows: Vec<Vec<Value>> = Vec::new();
                for item in ops::iterate(value)? {
                    match rows.last_mut().filter(|row| row.len() < count.max(1)) {
                        Some(row) => row.push(item),
                        None => rows.push(vec![item]),
                    }
                }
                if let (Some(fill), Some(row)) = (some(fill), rows.last_mut())
                    && row.len() < count.min(100_000)
                {
                    row.resize(count, fill);
                }
                Value::iter_of(rows.into_iter().map(Value::list).collect::<Result<_, _>>()?)
            }
            "slice" => {
                let [slices, fill] = args.bind(name, ["slices", "fill_with"])?;
                let slices = usize::try_from(int_or(slices, 0, name)?).unwrap_or(0);
                if slices == 0 || slices > 100_000 {
                    return Err(Fault::failed("slice wants a number of slices from 1 on"));
                }
                let items = ops::iterate(value)?;
                let (each, more) = (items.len() / slices, items.len() % slices);
                let (fill, mut items) = (some(fill), items.into_iter());
                let mut rows = Vec::new();
                for index in 0..slices {
                    let mut row: Vec<Value> = items.by_ref().take(each + usize::from(index < more)).collect();
                    if index >= more
                        && let Some(fill) = &fill
                    {
                        row.push(fill.clone());
                    }
                    rows.push(Value::list(row)?);
                }
                Value::iter_of(rows)
            }
            _ => self.group_by(value, args),
        }
    }

    fn group_by(&mut self, value: &Value, args: Args) -> Result<Value, Fault> {
        let [path, default, case] = args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
        let path = path.ok_or_else(|| Fault::failed("groupby wants an attribute"))?;
        let case = case.is_some_and(|case| case.is_true());
        let mut keyed = Vec::new();
        for item in ops::iterate(value)? {
            let plain = match (self.path(&item, &path)?, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                (found, _) => found,
            };
            let folded = self.sort_key(&plain, None, case)?;
            keyed.push((folded, plain, item));
        }
        let keyed = sort(keyed, |(left, ..), (right, ..)| ops::order(left, right, "<"))?;
        let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
        for (folded, plain, item) in keyed {
            match groups.last_mut().filter(|(last, ..)| ops::equal(last, &folded)) {
                Some((.., items)) => items.push(item),
                None => groups.push((folded, plain, vec![item])),
            }
        }
        let groups: Result<Vec<_>, Fault> = groups
            .into_iter()
            .map(|(_, name, items)| Ok(Value::Group(Items::new(vec![name, Value::list(items)?])?)))
            .collect();
        Value::list(groups?)
    }

    fn sorted(
        &mut self,
        items: Vec<Value>,
        paths: &[Option<Value>],
        case: bool,
        reverse: bool,
    ) -> Result<Vec<Value>, Fault> {
        self.spend(items.len().saturating_mul(8))?;
        let mut keyed = Vec::with_capacity(items.len());
        for item in items {
            let keys: Result<Vec<Value>, Fault> =
                paths.iter().map(|path| self.sort_key(&item, path.as_ref(), case)).collect();
            keyed.push((keys?, item));
        }
        let keyed = sort(keyed, |(left, _), (right, _)| {
            for (left, right) in left.iter().zip(right) {
                if !ops::equal(left, right) {
                    let order = ops::order(left, right, "<")?;
                    return Ok(if reverse { order.map(Ordering::reverse) } else { order });
                }
            }
            Ok(Some(Ordering::Equal))
        })?;
        Ok(keyed.into_iter().map(|(_, item)| item).collect())
    }
}

/// A stable sort by an order that may fail.
fn sort<T>(mut items: Vec<T>, order: impl Fn(&T, &T) -> Result<Option<Ordering>, Fault>) -> Result<Vec<T>, Fault> {
    let mut problem = None;
    // Numbers that are none would break the sort's own rules; whoever sorts such gets them in some order.
    items.sort_by(|left, right| match order(left, right) {
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(fault) => {
            problem.get_or_insert(fault);
            Ordering::Equal
        }
    });
    problem.map_or(Ok(items), Err)
}
