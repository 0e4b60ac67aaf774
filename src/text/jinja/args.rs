//! The arguments of a call, and how they meet parameters.

use std::sync::Arc;

use super::Fault;
use super::value::Value;

#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// The values of the parameters `names` of `what`, in their order.
    pub(super) fn bind<const N: usize>(self, what: &str, names: [&str; N]) -> Result<[Option<Value>; N], Fault> {
        let mut bound = [const { None }; N];
        let given = self.positional.len();
        if given > N {
            return Err(Fault::failed(format!("{what} takes at most {N} arguments, {given} were given")));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let place = names.iter().position(|known| *known == &*name).and_then(|at| bound.get_mut(at));
            match place {
                Some(place @ None) => *place = Some(value),
                Some(_) => return Err(Fault::failed(format!("{what} got two values for {name:?}"))),
                None => return Err(Fault::failed(format!("{what} has no argument {name:?}"))),
            }
        }
        Ok(bound)
    }

    /// For what takes nothing.
    pub(super) fn none(self, what: &str) -> Result<(), Fault> {
        self.bind::<0>(what, []).map(|_| ())
    }

    /// Takes the first positional argument out.
    pub(super) fn take_first(&mut self) -> Option<Value> {
        (!self.positional.is_empty()).then(|| self.positional.remove(0))
    }

    /// Takes a named argument out.
    pub(super) fn take_named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(found, _)| &**found == name)?;
        Some(self.named.remove(at).1)
    }
}

/// A whole number that was given, or the default.
pub(super) fn int_or(value: Option<Value>, default: i128, what: &str) -> Result<i128, Fault> {
    match value {
        None => Ok(default),
        Some(value) => {
            value.int().ok_or_else(|| Fault::failed(format!("{what}: a whole number is wanted, not {}", value.kind())))
        }
    }
}

/// A string that was given.
pub(super) fn str_of(value: &Value, what: &str) -> Result<super::text::Text, Fault> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        other => Err(Fault::failed(format!("{what}: a string is wanted, not {}", other.kind()))),
    }
}
