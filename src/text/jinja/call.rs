//! Calls: macros, functions, and the methods of values that are not strings.

use std::cell::Cell;
use std::rc::Rc;

use indexmap::IndexMap;

use super::args::{Args, int_or};
use super::ast::{Expr, Node};
use super::exec::Interpreter;
use super::scope::Scope;
use super::text::{Builder, Text};
use super::value::{Closure, Cycler, Dict, Function, Items, LoopState, Namespace, Range, Value, View};
use super::{Fault, methods, ops};

/// The longest range that the sandbox makes.
const LONGEST_RANGE: usize = 100_000;

impl Interpreter {
    pub(super) fn call(&mut self, callee: &Value, args: Args) -> Result<Value, Fault> {
        self.deeper(|this| match callee {
            Value::Macro(closure) => this.call_macro(closure, args),
            Value::Function(function) => this.function(*function, args),
            Value::Method(method) => {
                let (value, name) = &**method;
                this.method(value, name, args)
            }
            Value::Loop(state) => this.recurse(state, args),
            Value::Joiner(joiner) => {
                args.none("joiner")?;
                let (separator, used) = &**joiner;
                Ok(Value::Str(if used.replace(true) { separator.clone() } else { Text::default() }))
            }
            other => {
                ops::undefined(other)?;
                Err(Fault::failed(format!("'{}' object is not callable", other.kind())))
            }
        })
    }

    /// `{% call %}`: the call with its block as `caller`.
    pub(super) fn call_block(&mut self, call: &Expr, caller: Value, scope: &Rc<Scope>) -> Result<Value, Fault> {
        let Node::Call(callee, arguments) = &*call.node else { return Err(Fault::failed("call wants a call")) };
        let callee = self.eval(callee, scope)?;
        let mut args = self.arguments(arguments, scope)?;
        args.named.push(("caller".into(), caller));
        self.call(&callee, args)
    }

    fn call_macro(&mut self, closure: &Closure, mut args: Args) -> Result<Value, Fault> {
        let code = &closure.code;
        let scope = Scope::child(&closure.scope);
        let caller = args.take_named("caller");
        let known = code.parameters.iter().any(|(name, _)| &**name == "caller");
        match caller {
            Some(caller) if known || code.takes_caller => scope.set(&"caller".into(), caller),
            Some(_) => {
                return Err(Fault::failed(format!("macro '{}' was invoked with a block it does not use", code.name)));
            }
            None if code.takes_caller && !known => {
                scope.set(&"caller".into(), Value::undefined("No caller defined"));
            }
            None => {}
        }
        let mut positional = args.positional.into_iter();
        for (name, default) in &code.parameters {
            let given = match positional.next() {
                Some(value) => Some(value),
                None => args.named.iter().position(|(found, _)| found == name).map(|at| args.named.remove(at).1),
            };
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default, &scope)?,
                (None, None) if &**name == "caller" && known && scope.get("caller").is_some() => continue,
                (None, None) => Value::undefined(format!("parameter '{name}' was not provided")),
            };
            scope.set(name, value);
        }
        let rest: Vec<Value> = positional.collect();
        if code.takes_varargs {
            scope.set(&"varargs".into(), Value::tuple(rest)?);
        } else if !rest.is_empty() {
            let most = code.parameters.len();
            return Err(Fault::failed(format!("macro '{}' takes not more than {most} argument(s)", code.name)));
        }
        if code.takes_kwargs {
            let pairs = args.named.into_iter().map(|(name, value)| (Value::own(&name), value));
            scope.set(&"kwargs".into(), Value::Dict(Rc::new(Dict::new(pairs)?)));
        } else if let Some((name, _)) = args.named.first() {
            return Err(Fault::failed(format!("macro '{}' takes no keyword argument '{name}'", code.name)));
        }
        let line = self.line();
        let mut out = Builder::default();
        self.body(&code.body, &scope, &mut out)?;
        self.set_line(line);
        Ok(Value::Str(out.finish()?))
    }

    /// `loop(items)` of a recursive loop.
    fn recurse(&mut self, state: &LoopState, args: Args) -> Result<Value, Fault> {
        if !state.code.recursive {
            return Err(Fault::failed("the loop must have the 'recursive' marker to be called recursively"));
        }
        let [items] = args.bind("loop", ["iterable"])?;
        let items = items.ok_or_else(|| Fault::failed("loop wants what to loop over"))?;
        let mut out = Builder::default();
        self.for_loop(&state.code, &items, &state.scope, state.depth + 1, &mut out)?;
        Ok(Value::Str(out.finish()?))
    }

    fn function(&mut self, function: Function, mut args: Args) -> Result<Value, Fault> {
        match function {
            Function::Range => {
                let count = args.positional.len();
                let [first, second, step] = args.bind("range", ["start", "stop", "step"])?;
                let whole = |value: Option<Value>, default| int_or(value, default, "range");
                let (start, stop) = match count {
                    0 => return Err(Fault::failed("range expected at least 1 argument, got 0")),
                    1 => (0, whole(first, 0)?),
                    _ => (whole(first, 0)?, whole(second, 0)?),
                };
                let step = whole(step, 1)?;
                if step == 0 {
                    return Err(Fault::failed("range() arg 3 must not be zero"));
                }
                let fits = |number: i128| number.unsigned_abs() < 1 << 62;
                let range = Range { start, stop, step };
                if !(fits(start) && fits(stop) && fits(step)) || range.len() > LONGEST_RANGE {
                    return Err(Fault::failed(format!("range too big: the most is {LONGEST_RANGE}")));
                }
                Ok(Value::Range(range))
            }
            Function::Dict | Function::Namespace => {
                let mut pairs = Vec::new();
                if let Some(first) = args.take_first() {
                    pairs = pairs_of(&first)?;
                }
                pairs.extend(args.named.into_iter().map(|(name, value)| (Value::own(&name), value)));
                if function == Function::Dict {
                    return Ok(Value::Dict(Rc::new(Dict::new(pairs)?)));
                }
                let mut fields = IndexMap::new();
                for (name, value) in pairs {
                    fields.insert(name.text()?.as_str().to_owned(), value);
                }
                let namespace = Rc::new(Namespace::new(fields)?);
                self.keep_namespace(&namespace);
                Ok(Value::Namespace(namespace))
            }
            Function::Cycler => {
                if args.positional.is_empty() {
                    return Err(Fault::failed("at least one item has to be provided"));
                }
                Ok(Value::Cycler(Rc::new(Cycler { items: Items::new(args.positional)?, at: Cell::new(0) })))
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = separator.map_or_else(|| Ok(Text::own(", ")), |value| value.text())?;
                Ok(Value::Joiner(Rc::new((separator, Cell::new(false)))))
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"])?;
                let message = message.map_or_else(|| Ok(Text::default()), |message| message.text())?;
                Err(Fault::Raised(message.as_str().to_owned()))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let Some(Value::Str(format)) = format else { return Err(Fault::failed("strftime_now wants a format")) };
                self.spend_bytes(format.as_str().len() * 64)?;
                Ok(Value::own(&self.now.format(format.as_str()).map_err(Fault::failed)?))
            }
        }
    }

    fn method(&mut self, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
        self.spend_size(value)?;
        match value {
            Value::Str(text) => {
                let result = self.string_method(text, name, args)?;
                self.spend_size(&result)?;
                Ok(result)
            }
            Value::Dict(dict) => dict_method(dict, name, args),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) if name != "copy" => {
                methods::sequence_method(&items.items, name, args)
            }
            Value::Range(_) => methods::sequence_method(&ops::iterate(value)?, name, args),
            Value::List(_) => args.none(name).map(|()| value.clone()),
            Value::Float(number) => args.none(name).map(|()| Value::Bool(number.fract() == 0.0)),
            Value::Int(_) | Value::Bool(_) => {
                args.none(name)?;
                let number = value.int().unwrap_or_default().unsigned_abs();
                Ok(Value::Int(i128::from(u128::BITS - number.leading_zeros())))
            }
            Value::Cycler(cycler) => {
                args.none(name)?;
                if name == "reset" {
                    cycler.at.set(0);
                    return Ok(Value::None);
                }
                let at = cycler.at.get();
                cycler.at.set((at + 1) % cycler.items.items.len());
                Ok(cycler.items.items.get(at).cloned().unwrap_or(Value::None))
            }
            Value::Loop(state) if name == "cycle" => {
                let at = state.index.get() % args.positional.len().max(1);
                args.positional.get(at).cloned().ok_or_else(|| Fault::failed("no items for cycling given"))
            }
            Value::Loop(state) => {
                let now = args.positional;
                let mut before = state.changed.borrow_mut();
                let same = before.as_ref().is_some_and(|before| {
                    before.len() == now.len() && before.iter().zip(&now).all(|(left, right)| ops::equal(left, right))
                });
                *before = Some(now);
                Ok(Value::Bool(!same))
            }
            other => Err(Fault::failed(format!("'{}' object has no method '{name}'", other.kind()))),
        }
    }
}

/// Pairs from a dict, or from a list of pairs.
fn pairs_of(value: &Value) -> Result<Vec<(Value, Value)>, Fault> {
    if let Value::Dict(dict) = value {
        return Ok(dict.iter().cloned().collect());
    }
    ops::undefined(value)?;
    ops::iterate(value)?
        .iter()
        .map(|item| match <[Value; 2]>::try_from(ops::iterate(item)?) {
            Ok([key, value]) => Ok((key, value)),
            Err(_) => Err(Fault::failed("a dict is made of pairs")),
        })
        .collect()
}

fn dict_method(dict: &Rc<Dict>, name: &str, args: Args) -> Result<Value, Fault> {
    let view = |kind, args: Args, items: Vec<Value>| -> Result<Value, Fault> {
        args.none(name)?;
        Ok(Value::View(kind, Items::new(items)?))
    };
    match name {
        "get" => {
            let given = args.named.len();
            let [key, default] = args.bind("get", ["", "\0"])?;
            let key = key.filter(|_| given == 0).ok_or_else(|| Fault::failed("get expected at least 1 argument"))?;
            Ok(dict.get(&key.key()?).cloned().or(default).unwrap_or(Value::None))
        }
        "items" => {
            let items: Result<Vec<Value>, Fault> =
                dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect();
            view(View::Items, args, items?)
        }
        "keys" => view(View::Keys, args, dict.iter().map(|(key, _)| key.clone()).collect()),
        "values" => view(View::Values, args, dict.iter().map(|(_, value)| value.clone()).collect()),
        "copy" => args.none(name).map(|()| Value::Dict(Rc::clone(dict))),
        _ => {
            let [keys, value] = args.bind(name, ["iterable", "value"])?;
            let keys = ops::iterate(&keys.unwrap_or(Value::None))?;
            let value = value.unwrap_or(Value::None);
            Ok(Value::Dict(Rc::new(Dict::new(keys.into_iter().map(|key| (key, value.clone())))?)))
        }
    }
}
