//! What the macros `all`, `exists`, `exists_one`, `map` and `filter` become in the parser, told apart by their step.

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, operators};

use super::node::Fold;

/// What a macro does with each element.
pub(super) enum Step<'s> {
    Fold(Fold, &'s IdedExpr),
    Collect(Option<&'s IdedExpr>, &'s IdedExpr),
}

/// `None`: none of them.
pub(super) fn step_of(macro_: &ComprehensionExpr) -> Option<Step<'_>> {
    let step = as_call(&macro_.loop_step)?;
    match (step.func_name.as_str(), step.args.as_slice()) {
        (operators::LOGICAL_AND, [_, body]) => Some(Step::Fold(Fold::All, body)),
        (operators::LOGICAL_OR, [_, body]) => Some(Step::Fold(Fold::Exists, body)),
        (operators::ADD, [_, list]) => Some(Step::Collect(None, only_element(list)?)),
        (operators::CONDITIONAL, [guard, then, _]) => match as_call(then)?.args.as_slice() {
            [_, list @ IdedExpr { expr: Expr::List(_), .. }] => {
                Some(Step::Collect(Some(guard), only_element(list)?))
            }
            // It counts.
            _ => Some(Step::Fold(Fold::ExistsOne, guard)),
        },
        _ => None,
    }
}

fn as_call(expr: &IdedExpr) -> Option<&CallExpr> {
    match &expr.expr {
        Expr::Call(call) => Some(call),
        _ => None,
    }
}

fn only_element(list: &IdedExpr) -> Option<&IdedExpr> {
    match &list.expr {
        Expr::List(list) => list.elements.first(),
        _ => None,
    }
}
