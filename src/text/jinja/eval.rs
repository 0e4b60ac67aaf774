//! Expressions.

use std::cmp::Ordering;
use std::rc::Rc;

use super::args::Args;
use super::ast::{Arguments, Comparison, Expr, Node};
use super::exec::Interpreter;
use super::scope::Scope;
use super::text::Builder;
use super::value::{Dict, Number, Value};
use super::{Fault, ops};

impl Interpreter {
    pub(super) fn eval(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        match &*expr.node {
            Node::None => Ok(Value::None),
            Node::Bool(value) => Ok(Value::Bool(*value)),
            Node::Int(number) => Ok(Value::Int(*number)),
            Node::Float(number) => Ok(Value::Float(*number)),
            Node::Str(text) => {
                self.spend_bytes(text.len())?;
                Ok(Value::own(text))
            }
            Node::Name(name) => {
                Ok(scope.get(name).unwrap_or_else(|| Value::undefined(format!("'{name}' is undefined"))))
            }
            _ => self.deeper(|this| this.compound(expr, scope)),
        }
    }

    fn compound(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        match &*expr.node {
            Node::List(items) => Value::list(self.all(items, scope)?),
            Node::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Node::Dict(items) => {
                let mut pairs = Vec::with_capacity(items.len());
                for (key, value) in items {
                    pairs.push((self.eval(key, scope)?, self.eval(value, scope)?));
                }
                Ok(Value::Dict(Rc::new(Dict::new(pairs)?)))
            }
            Node::If(test, value, otherwise) => match (self.eval(test, scope)?.is_true(), otherwise) {
                (true, _) => self.eval(value, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => Ok(Value::undefined("the inline if-expression has no else, and its test is false")),
            },
            Node::And(left, right) => {
                let left = self.eval(left, scope)?;
                if left.is_true() { self.eval(right, scope) } else { Ok(left) }
            }
            Node::Or(left, right) => {
                let left = self.eval(left, scope)?;
                if left.is_true() { Ok(left) } else { self.eval(right, scope) }
            }
            Node::Not(inner) => Ok(Value::Bool(!self.eval(inner, scope)?.is_true())),
            Node::Negative(inner) | Node::Positive(inner) => {
                let value = self.eval(inner, scope)?;
                let minus = matches!(&*expr.node, Node::Negative(_));
                match value.number() {
                    Some(Number::Int(number)) if minus => {
                        number.checked_neg().map(Value::Int).ok_or_else(|| Fault::failed("a whole number is too large"))
                    }
                    Some(Number::Float(number)) if minus => Ok(Value::Float(-number)),
                    Some(Number::Int(number)) => Ok(Value::Int(number)),
                    Some(Number::Float(number)) => Ok(Value::Float(number)),
                    None => {
                        ops::undefined(&value)?;
                        Err(Fault::failed(format!("bad operand type for a sign: '{}'", value.kind())))
                    }
                }
            }
            Node::Binary(op, left, right) => {
                let (left, right) = (self.eval(left, scope)?, self.eval(right, scope)?);
                let value = ops::binary(*op, &left, &right)?;
                self.spend_size(&value)?;
                Ok(value)
            }
            Node::Concat(parts) => {
                let mut out = Builder::default();
                for part in parts {
                    self.eval(part, scope)?.print(&mut out)?;
                }
                self.spend_bytes(out.len())?;
                Ok(Value::Str(out.finish()?))
            }
            Node::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (comparison, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !self.compare(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Node::Attribute(value, name) => {
                let value = self.eval(value, scope)?;
                self.attribute(&value, name)
            }
            Node::Item(value, index) => {
                let (value, index) = (self.eval(value, scope)?, self.eval(index, scope)?);
                self.item(&value, &index)
            }
            Node::Slice(value, bounds) => {
                let value = self.eval(value, scope)?;
                let mut found = [None, None, None];
                for (place, bound) in found.iter_mut().zip(bounds) {
                    *place = bound.as_ref().map(|bound| self.eval(bound, scope)).transpose()?;
                }
                self.spend_size(&value)?;
                ops::slice(&value, found)
            }
            Node::Call(callee, arguments) => {
                let callee = self.eval(callee, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.call(&callee, args)
            }
            Node::Filter(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.filter(name, value, args)
            }
            Node::Test(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.check(name, &value, args).map(Value::Bool)
            }
            // The others have no parts, and `eval` knows them.
            _ => self.eval(expr, scope),
        }
    }

    /// Takes the steps for walking through a value.
    pub(super) fn spend_size(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::Str(text) => self.spend_bytes(text.as_str().len()),
            Value::List(items) | Value::Tuple(items) => self.spend(items.items.len()),
            _ => Ok(()),
        }
    }

    fn all(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn compare(&mut self, comparison: Comparison, left: &Value, right: &Value) -> Result<bool, Fault> {
        self.spend_size(left)?;
        self.spend_size(right)?;
        let ordered = |op: &str, wanted: &[Ordering]| {
            Ok(ops::order(left, right, op)?.is_some_and(|found| wanted.contains(&found)))
        };
        match comparison {
            Comparison::Equal => Ok(ops::equal(left, right)),
            Comparison::NotEqual => Ok(!ops::equal(left, right)),
            Comparison::Less => ordered("<", &[Ordering::Less]),
            Comparison::LessOrEqual => ordered("<=", &[Ordering::Less, Ordering::Equal]),
            Comparison::Greater => ordered(">", &[Ordering::Greater]),
            Comparison::GreaterOrEqual => ordered(">=", &[Ordering::Greater, Ordering::Equal]),
            Comparison::In => ops::contains(right, left),
            Comparison::NotIn => ops::contains(right, left).map(|found| !found),
        }
    }

    pub(super) fn arguments(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Args, Fault> {
        let mut args = Args { positional: self.all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(rest) = &arguments.rest {
            args.positional.extend(ops::iterate(&self.eval(rest, scope)?)?);
        }
        if let Some(rest) = &arguments.named_rest {
            let Value::Dict(dict) = self.eval(rest, scope)? else {
                return Err(Fault::failed("what follows ** in a call must be a dict"));
            };
            for (name, value) in dict.iter() {
                let Value::Str(name) = name else { return Err(Fault::failed("names of arguments must be strings")) };
                args.named.push((name.as_str().into(), value.clone()));
            }
        }
        self.spend(args.positional.len() + args.named.len())?;
        Ok(args)
    }
}
