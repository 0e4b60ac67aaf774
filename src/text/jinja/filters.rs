//! Jinja2's filters, and `tojson` as `transformers` has it.

mod sequence;
mod string;

use super::args::{Args, int_or};
use super::exec::Interpreter;
use super::text::Text;
use super::value::{Number, Value};
use super::{Fault, json, ops};

impl Interpreter {
    /// `value | name(args)`
    pub(super) fn filter(&mut self, name: &str, value: Value, mut args: Args) -> Result<Value, Fault> {
        self.spend(1)?;
        self.spend_size(&value)?;
        let result = match name {
            "tojson" => json::to_json(&value, args),
            "default" | "d" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
                let replaced = matches!(value, Value::Undefined(_))
                    || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
                Ok(if replaced { default.unwrap_or_else(|| Value::own("")) } else { value })
            }
            "length" | "count" => {
                args.none(name)?;
                Ok(Value::Int(ops::length(&value)? as i128))
            }
            "attr" => {
                let [attribute] = args.bind(name, ["name"])?;
                let attribute = attribute.unwrap_or(Value::None).text()?;
                match value {
                    // Unlike `.`, this filter does not look at items.
                    Value::Dict(_) => {
                        Ok(Value::undefined(format!("'dict object' has no attribute '{}'", attribute.as_str())))
                    }
                    _ => self.attribute(&value, &attribute.as_str().into()),
                }
            }
            "abs" => {
                args.none(name)?;
                match value.number() {
                    Some(Number::Int(number)) => Ok(Value::Int(number.saturating_abs())),
                    Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
                    None => Err(Fault::failed(format!("bad operand type for abs(): '{}'", value.kind()))),
                }
            }
            "int" => to_int(&value, args),
            "float" => {
                let [default] = args.bind(name, ["default"])?;
                ops::undefined(&value)?;
                Ok(match (&value, value.number()) {
                    (_, Some(number)) => Value::Float(number.float()),
                    (Value::Str(text), _) => match parse_float(text.as_str()) {
                        Some(number) => Value::Float(number),
                        None => default.unwrap_or(Value::Float(0.0)),
                    },
                    _ => default.unwrap_or(Value::Float(0.0)),
                })
            }
            "round" => round(&value, args),
            "string" | "safe" => {
                args.none(name)?;
                Ok(Value::Str(value.text()?))
            }
            "pprint" => Ok(Value::Str(value.repr_text()?)),
            "map" => self.map(&value, args),
            "select" | "reject" => self.select(&value, args, name == "select", false),
            "selectattr" | "rejectattr" => self.select(&value, args, name == "selectattr", true),
            "dictsort" | "items" | "list" | "first" | "last" | "random" | "join" | "reverse" | "sort" | "unique"
            | "min" | "max" | "sum" | "batch" | "slice" | "groupby" => self.sequence_filter(name, &value, args),
            "format" => {
                let format = value.text()?;
                let given = if args.named.is_empty() {
                    Value::tuple(std::mem::take(&mut args.positional))?
                } else {
                    let pairs = args.named.into_iter().map(|(name, value)| (Value::own(&name), value));
                    Value::Dict(std::rc::Rc::new(super::value::Dict::new(pairs)?))
                };
                super::format::percent(&format, &given).map(Value::Str)
            }
            _ => self.string_filter(name, &value, args),
        }?;
        self.spend_size(&result)?;
        Ok(result)
    }
}

fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim().replace('_', "");
    match text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str() {
        "infinity" | "inf" | "nan" => text.to_ascii_lowercase().replace("infinity", "inf").parse().ok(),
        _ => text.parse().ok(),
    }
}

fn to_int(value: &Value, args: Args) -> Result<Value, Fault> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    ops::undefined(value)?;
    let base = u32::try_from(int_or(base, 10, "base")?).unwrap_or(10).clamp(2, 36);
    let found = match (value, value.number()) {
        (_, Some(Number::Int(number))) => Some(number),
        (_, Some(Number::Float(number))) => number.is_finite().then_some(number as i128),
        (Value::Str(text), _) => {
            let digits = text.as_str().trim().replace('_', "");
            let bare = match base {
                16 => digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")),
                8 => digits.strip_prefix("0o"),
                2 => digits.strip_prefix("0b"),
                _ => None,
            };
            i128::from_str_radix(bare.unwrap_or(&digits), base)
                .ok()
                .or_else(|| parse_float(&digits).filter(|number| number.is_finite()).map(|number| number as i128))
        }
        _ => None,
    };
    Ok(found.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

fn round(value: &Value, args: Args) -> Result<Value, Fault> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = int_or(precision, 0, "precision")?.clamp(-30, 300) as i32;
    let method = method.map_or_else(|| Ok(Text::own("common")), |method| method.text())?;
    let Some(number) = value.number() else {
        ops::undefined(value)?;
        return Err(Fault::failed(format!("type {} cannot be rounded", value.kind())));
    };
    let scale = 10_f64.powi(precision);
    match (method.as_str(), number) {
        ("common", Number::Int(number)) if precision >= 0 => Ok(Value::Int(number)),
        ("common", number) => {
            let real = number.float();
            let rounded = if precision >= 0 {
                format!("{real:.*}", precision as usize).parse().unwrap_or(real)
            } else {
                (real * scale).round_ties_even() / scale
            };
            Ok(if matches!(number, Number::Int(_)) { Value::Int(rounded as i128) } else { Value::Float(rounded) })
        }
        ("ceil", number) => Ok(Value::Float((number.float() * scale).ceil() / scale)),
        ("floor", number) => Ok(Value::Float((number.float() * scale).floor() / scale)),
        _ => Err(Fault::failed("method must be common, ceil or floor")),
    }
}
