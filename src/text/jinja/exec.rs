//! Statements: the walk through a template.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Arguments, Loop, Statement, StatementNode, Target};
use super::scope::Scope;
use super::text::{Builder, Text};
use super::value::{Closure, Function, Items, LoopState, Namespace, Value};
use super::{Fault, Given, Moment, json, ops};

/// Steps that a template may take, where 64 bytes made or read are a step too: far more than any real chat needs, and a
/// second or two of work.
pub(in crate::text) const FUEL: u64 = 10_000_000;

/// Most calls, blocks and expressions inside of each other, with an upper bound of the stack in mind.
const DEEPEST: usize = 300;

/// What the end of a statement means to those around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering.
pub(super) struct Interpreter {
    fuel: u64,
    depth: usize,
    line: usize,
    pub(super) now: Moment,
    /// Scopes that a macro was defined in, and namespaces: they may hold themselves, and are emptied at the end.
    scopes: Vec<Rc<Scope>>,
    namespaces: Vec<Rc<Namespace>>,
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        for scope in &self.scopes {
            scope.clear();
        }
        for namespace in &self.namespaces {
            let fields = std::mem::take(&mut *namespace.fields.borrow_mut());
            drop(fields);
        }
    }
}

impl Interpreter {
    pub(super) fn new(now: Moment) -> Self {
        Self { fuel: FUEL, depth: 0, line: 0, now, scopes: Vec::new(), namespaces: Vec::new() }
    }

    /// The line of the last statement, from 1; 0 before any.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn set_line(&mut self, line: usize) {
        self.line = line;
    }

    pub(super) fn run<'v>(
        &mut self,
        body: &[Statement],
        variables: impl IntoIterator<Item = (&'v str, Given<'v>)>,
    ) -> Result<Text, Fault> {
        let globals = Rc::new(Scope::default());
        let functions = [
            ("range", Function::Range),
            ("dict", Function::Dict),
            ("namespace", Function::Namespace),
            ("cycler", Function::Cycler),
            ("joiner", Function::Joiner),
            ("raise_exception", Function::RaiseException),
            ("strftime_now", Function::StrftimeNow),
        ];
        for (name, function) in functions {
            globals.set(&name.into(), Value::Function(function));
        }
        for (name, given) in variables {
            let value = match given {
                Given::Own(text) => Value::own(text),
                Given::Content(value) => json::value(value)?,
                Given::Messages(messages) => json::messages(messages)?,
            };
            globals.set(&name.into(), value);
        }
        let scope = Scope::child(&globals);
        self.scopes.push(Rc::clone(&scope));
        let mut out = Builder::default();
        self.body(body, &scope, &mut out)?;
        out.finish()
    }

    /// Takes `steps` from what the template may use up.
    pub(super) fn spend(&mut self, steps: usize) -> Result<(), Fault> {
        self.fuel = self.fuel.checked_sub(steps as u64).ok_or(Fault::Endless)?;
        Ok(())
    }

    /// Takes the steps for making or reading `bytes`.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Fault> {
        self.spend(bytes / 64)
    }

    /// Runs `walk` one level further down.
    pub(super) fn deeper<T>(&mut self, walk: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        self.spend(1)?;
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Fault::failed("maximum recursion depth exceeded: a macro or loop calls itself without end"));
        }
        let result = walk(self);
        self.depth -= 1;
        result
    }

    pub(super) fn keep_namespace(&mut self, namespace: &Rc<Namespace>) {
        self.namespaces.push(Rc::clone(namespace));
    }

    pub(super) fn keep_scope(&mut self, scope: &Rc<Scope>) {
        self.scopes.push(Rc::clone(scope));
    }

    pub(super) fn body(&mut self, body: &[Statement], scope: &Rc<Scope>, out: &mut Builder) -> Result<Flow, Fault> {
        self.deeper(|this| {
            for statement in body {
                this.line = statement.line;
                let flow = this.statement(&statement.node, scope, out)?;
                if out.is_full() {
                    return Err(Fault::failed("the text is too long"));
                }
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&mut self, node: &StatementNode, scope: &Rc<Scope>, out: &mut Builder) -> Result<Flow, Fault> {
        self.spend(1)?;
        let begin = out.len();
        match node {
            StatementNode::Data(text) => out.push_own(text),
            StatementNode::Print(value) => self.eval(value, scope)?.print(out)?,
            StatementNode::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementNode::SetBlock { target, filters, body } => {
                let text = self.captured(body, scope, filters)?;
                self.assign(target, text, scope)?;
            }
            StatementNode::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            StatementNode::For(code) => {
                let items = self.eval(&code.iterable, scope)?;
                self.for_loop(code, &items, scope, 0, out)?;
            }
            StatementNode::Macro(code) => {
                let closure = Closure { code: Arc::clone(code), scope: Rc::clone(scope) };
                self.keep_scope(scope);
                scope.set(&code.name, Value::Macro(Rc::new(closure)));
            }
            StatementNode::Call { call, block } => {
                let caller = Value::Macro(Rc::new(Closure { code: Arc::clone(block), scope: Rc::clone(scope) }));
                self.keep_scope(scope);
                self.call_block(call, caller, scope)?.print(out)?;
            }
            StatementNode::FilterBlock { filters, body } => self.captured(body, scope, filters)?.print(out)?,
            StatementNode::With { values, body } => {
                let inner = Scope::child(scope);
                for (target, value) in values {
                    let value = self.eval(value, &inner)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            StatementNode::Scope(body) => return self.body(body, &Scope::child(scope), out),
            StatementNode::Break => return Ok(Flow::Break),
            StatementNode::Continue => return Ok(Flow::Continue),
        }
        self.spend_bytes(out.len() - begin)?;
        Ok(Flow::Next)
    }

    /// What a body prints, through filters.
    fn captured(
        &mut self,
        body: &[Statement],
        scope: &Rc<Scope>,
        filters: &[(Arc<str>, Arguments)],
    ) -> Result<Value, Fault> {
        let mut out = Builder::default();
        let inner = Scope::child(scope);
        self.body(body, &inner, &mut out)?;
        let mut value = Value::Str(out.finish()?);
        for (name, arguments) in filters {
            let args = self.arguments(arguments, scope)?;
            value = self.filter(name, value, args)?;
        }
        Ok(value)
    }

    pub(super) fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<(), Fault> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Field(name, field) => match scope.get(name) {
                Some(Value::Namespace(namespace)) => namespace.set(field, value)?,
                _ => return Err(Fault::failed(format!("cannot assign attribute on non-namespace object '{name}'"))),
            },
            Target::Tuple(targets) => {
                ops::undefined(&value)?;
                let items = ops::iterate(&value)?;
                self.spend(items.len())?;
                if items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), items.len());
                    return Err(Fault::failed(format!("{wanted} values are wanted to unpack, not {found}")));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn for_loop(
        &mut self,
        code: &Arc<Loop>,
        iterable: &Value,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut Builder,
    ) -> Result<(), Fault> {
        let mut items = ops::iterate(iterable)?;
        self.spend(items.len())?;
        // Jinja2 tests an item only when its turn comes, unless the body looks at the loop as a whole.
        if code.test.is_some() && code.uses_loop {
            let mut kept = Vec::new();
            for item in items {
                if self.passes(code, &item, scope)? {
                    kept.push(item);
                }
            }
            items = kept;
        }
        let state = Rc::new(LoopState {
            code: Arc::clone(code),
            scope: Rc::clone(scope),
            items: Items::new(items)?,
            index: Cell::new(0),
            depth,
            changed: RefCell::new(None),
        });
        let name: Arc<str> = "loop".into();
        let mut any = false;
        for (index, item) in state.items.items.iter().enumerate() {
            if code.test.is_some() && !code.uses_loop && !self.passes(code, item, scope)? {
                continue;
            }
            any = true;
            state.index.set(index);
            let pass = Scope::child(scope);
            self.assign(&code.target, item.clone(), &pass)?;
            pass.set(&name, Value::Loop(Rc::clone(&state)));
            if self.body(&code.body, &pass, out)? == Flow::Break {
                break;
            }
        }
        if !any {
            self.body(&code.otherwise, &Scope::child(scope), out)?;
        }
        Ok(())
    }

    fn passes(&mut self, code: &Loop, item: &Value, scope: &Rc<Scope>) -> Result<bool, Fault> {
        let Some(test) = &code.test else { return Ok(true) };
        let inner = Scope::child(scope);
        self.assign(&code.target, item.clone(), &inner)?;
        Ok(self.eval(test, &inner)?.is_true())
    }
}
