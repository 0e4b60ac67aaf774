//! Variables: each loop pass, macro and block has its own, over those around it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::value::Value;

#[derive(Debug, Default)]
pub(super) struct Scope {
    variables: RefCell<HashMap<Arc<str>, Value>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn child(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { variables: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if let Some(value) = current.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = current.parent.as_deref();
        }
        None
    }

    pub(super) fn set(&self, name: &Arc<str>, value: Value) {
        let old = self.variables.borrow_mut().insert(Arc::clone(name), value);
        drop(old);
    }

    /// Forgets everything: macros hold the scope that holds them, and would keep each other for ever.
    pub(super) fn clear(&self) {
        let old = std::mem::take(&mut *self.variables.borrow_mut());
        drop(old);
    }
}
