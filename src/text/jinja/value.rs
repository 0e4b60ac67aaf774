//! The values that templates work with: Python's, as far as templates see them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::Fault;
use super::ast;
use super::scope::Scope;
use super::text::Text;

/// Most containers inside of each other: walking and dropping them needs a bounded stack.
const DEEPEST: usize = 100;

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// With what an error says about it.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    /// A pair of `groupby`, a tuple with the names `grouper` and `list`.
    Group(Rc<Items>),
    Dict(Rc<Dict>),
    Range(Range),
    /// A generator: its values can be taken once.
    Iter(Rc<Iter>),
    /// `dict.keys()`, `.values()`, `.items()`
    View(View, Rc<Items>),
    Namespace(Rc<Namespace>),
    Function(Function),
    Macro(Rc<Closure>),
    /// A method of a value.
    Method(Rc<(Value, Arc<str>)>),
    Loop(Rc<LoopState>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<(Text, Cell<bool>)>),
}

/// A list or tuple with how deep it is.
#[derive(Debug)]
pub(super) struct Items {
    pub(super) items: Vec<Value>,
    depth: usize,
}

#[derive(Debug)]
pub(super) struct Iter {
    pub(super) items: RefCell<VecDeque<Value>>,
    depth: usize,
}

#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) fields: RefCell<IndexMap<String, Value>>,
    depth: Cell<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) start: i128,
    pub(super) stop: i128,
    pub(super) step: i128,
}

/// What a template can call by a name of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// A macro with the variables where it was defined.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) code: Arc<ast::Macro>,
    pub(super) scope: Rc<Scope>,
}

#[derive(Debug)]
pub(super) struct Cycler {
    pub(super) items: Rc<Items>,
    pub(super) at: Cell<usize>,
}

/// `loop`, within a loop.
#[derive(Debug)]
pub(super) struct LoopState {
    pub(super) code: Arc<ast::Loop>,
    pub(super) scope: Rc<Scope>,
    pub(super) items: Rc<Items>,
    pub(super) index: Cell<usize>,
    pub(super) depth: usize,
    pub(super) changed: RefCell<Option<Vec<Value>>>,
}

/// A dict in the order of its keys' arrival.
#[derive(Debug, Default)]
pub(super) struct Dict {
    entries: IndexMap<Key, (Value, Value)>,
    depth: usize,
}

/// What makes two keys of a dict the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Undefined,
    None,
    Int(i128),
    /// The bits of a number that is not whole.
    Float(u64),
    Str(Rc<str>),
    Tuple(Vec<Key>),
    /// Things that are only equal to themselves.
    Address(usize),
}

/// One level more than the deepest of `items`.
fn level<'v>(items: impl Iterator<Item = &'v Value>) -> Result<usize, Fault> {
    let depth = items.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > DEEPEST {
        return Err(Fault::failed(format!("more than {DEEPEST} lists and dicts are inside of each other")));
    }
    Ok(depth)
}

impl Items {
    pub(super) fn new(items: Vec<Value>) -> Result<Rc<Self>, Fault> {
        let depth = level(items.iter())?;
        Ok(Rc::new(Self { items, depth }))
    }
}

impl Namespace {
    pub(super) fn new(fields: IndexMap<String, Value>) -> Result<Self, Fault> {
        let depth = Cell::new(level(fields.values())?);
        Ok(Self { fields: RefCell::new(fields), depth })
    }

    pub(super) fn set(&self, name: &str, value: Value) -> Result<(), Fault> {
        self.depth.set(self.depth.get().max(level(std::iter::once(&value))?));
        self.fields.borrow_mut().insert(name.to_owned(), value);
        Ok(())
    }
}

impl Dict {
    pub(super) fn new(items: impl IntoIterator<Item = (Value, Value)>) -> Result<Self, Fault> {
        let mut dict = Self { entries: IndexMap::new(), depth: 1 };
        for (key, value) in items {
            dict.depth = dict.depth.max(level([&key, &value].into_iter())?);
            let place = key.key()?;
            match dict.entries.get_mut(&place) {
                // As in Python, the first key stays.
                Some((_, old)) => *old = value,
                None => {
                    dict.entries.insert(place, (key, value));
                }
            }
        }
        Ok(dict)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_str(&self, key: &str) -> Option<&Value> {
        self.get(&Key::Str(key.into()))
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &(Value, Value)> {
        self.entries.values()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Range {
    pub(super) fn len(&self) -> usize {
        let span = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        if span <= 0 { 0 } else { ((span - 1) / self.step.abs() + 1) as usize }
    }

    pub(super) fn get(&self, index: usize) -> Option<Value> {
        (index < self.len()).then(|| Value::Int(self.start + self.step * index as i128))
    }
}

impl Value {
    pub(super) fn own(text: &str) -> Self {
        Self::Str(Text::own(text))
    }

    pub(super) fn list(items: Vec<Value>) -> Result<Self, Fault> {
        Ok(Self::List(Items::new(items)?))
    }

    pub(super) fn tuple(items: Vec<Value>) -> Result<Self, Fault> {
        Ok(Self::Tuple(Items::new(items)?))
    }

    pub(super) fn iter_of(items: Vec<Value>) -> Result<Self, Fault> {
        let depth = level(items.iter())?;
        Ok(Self::Iter(Rc::new(Iter { items: RefCell::new(items.into()), depth })))
    }

    pub(super) fn undefined(what: impl AsRef<str>) -> Self {
        Self::Undefined(what.as_ref().into())
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Group(items) | Self::View(_, items) => items.depth,
            Self::Dict(dict) => dict.depth,
            Self::Iter(iter) => iter.depth,
            Self::Namespace(namespace) => namespace.depth.get(),
            Self::Method(method) => method.0.depth() + 1,
            Self::Cycler(cycler) => cycler.items.depth,
            _ => 0,
        }
    }

    /// Python's name of its type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) | Self::Group(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::Iter(_) => "generator",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Namespace(_) => "Namespace",
            Self::Function(_) => "function",
            Self::Macro(_) => "Macro",
            Self::Method(_) => "builtin_function_or_method",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) | Self::View(_, items) => {
                !items.items.is_empty()
            }
            Self::Dict(dict) => dict.len() > 0,
            Self::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    /// The number of a bool, int or float.
    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Self::Bool(value) => Some(Number::Int(i128::from(*value))),
            Self::Int(number) => Some(Number::Int(*number)),
            Self::Float(number) => Some(Number::Float(*number)),
            _ => None,
        }
    }

    /// The whole number of a bool or int.
    pub(super) fn int(&self) -> Option<i128> {
        match self.number()? {
            Number::Int(number) => Some(number),
            Number::Float(_) => None,
        }
    }

    /// Its place in a dict.
    pub(super) fn key(&self) -> Result<Key, Fault> {
        Ok(match self {
            Self::Undefined(_) => Key::Undefined,
            Self::None => Key::None,
            Self::Bool(value) => Key::Int(i128::from(*value)),
            Self::Int(number) => Key::Int(*number),
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 1e30 => Key::Int(*number as i128),
            Self::Float(number) => Key::Float(number.to_bits()),
            Self::Str(text) => Key::Str(text.shared()),
            Self::Tuple(items) | Self::Group(items) => {
                Key::Tuple(items.items.iter().map(Self::key).collect::<Result<_, _>>()?)
            }
            Self::Range(range) => Key::Tuple(vec![Key::Int(range.start), Key::Int(range.stop), Key::Int(range.step)]),
            Self::Namespace(namespace) => Key::Address(Rc::as_ptr(namespace).addr()),
            Self::Macro(closure) => Key::Address(Rc::as_ptr(closure).addr()),
            Self::Function(function) => Key::Address(*function as usize),
            _ => return Err(Fault::failed(format!("unhashable type: '{}'", self.kind()))),
        })
    }
}

/// What arithmetic works with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}
