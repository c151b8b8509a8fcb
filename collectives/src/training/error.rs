//! Errors of the helpers that have some of their own; those of the others are a [`CollectiveError`].

use std::fmt;

use thiserror::Error;

use crate::error::CollectiveError;

/// A gradient was not taken, or gradients were not reduced.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BucketError {
    /// There is no such parameter.
    #[error("there is no parameter {param} among {parameters}: they are numbered from 0")]
    NoSuchParameter {
        /// The parameter named.
        param: usize,
        /// The number of parameters.
        parameters: usize,
    },
    /// The gradient of a parameter was given before in this step.
    #[error("the gradient of parameter {param} was given before in this step: give each once, or call finish first")]
    Twice {
        /// The parameter.
        param: usize,
    },
    /// A gradient has another length than its parameter.
    #[error("the gradient of parameter {param} has {len} elements where {expected} fit")]
    Length {
        /// The parameter.
        param: usize,
        /// The length of the gradient, in elements.
        len: usize,
        /// The parameter's.
        expected: usize,
    },
    /// The parameters of ranks differ, which would mix them up.
    #[error(
        "ranks do not have parameters of the same lengths in the same order: make GradientBuckets of one list on all"
    )]
    Lengths,
    /// Gradients are missing. Once they are given, `finish` can be called again.
    #[error("no gradient was given for {}: add it, or skip what this step did not use", parameters(params))]
    Missing {
        /// The parameters, in forward order.
        params: Vec<usize>,
    },
    /// An operation did not come about.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Tokens were not brought to their experts, or not back.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// Experts are not evenly on ranks.
    #[error("{experts} experts are not spread evenly over {ranks} ranks: choose a multiple of {ranks}, 1 at least")]
    Experts {
        /// The number of experts.
        experts: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// There is no such expert.
    #[error("token {token} is for expert {expert}, but there are {experts}: they are numbered from 0")]
    NoSuchExpert {
        /// The token.
        token: usize,
        /// The expert named.
        expert: usize,
        /// The number of experts.
        experts: usize,
    },
    /// The tokens' rows are not as long as they should be.
    #[error("{tokens} tokens of {width} elements each are {expected} elements, but {len} were given")]
    Length {
        /// The number of tokens that have an expert.
        tokens: usize,
        /// The length of a row.
        width: usize,
        /// The product.
        expected: usize,
        /// The length given.
        len: usize,
    },
    /// A rank announced what can not be: fewer rows than none, or more than memory can hold.
    #[error("rank {rank} announces {rows} rows for an expert: all ranks must make their Dispatch alike")]
    Announced {
        /// The rank.
        rank: usize,
        /// What it announced.
        rows: i64,
    },
    /// An operation did not come about.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Parameters in words: at most eight of them.
fn parameters(params: &[usize]) -> impl fmt::Display {
    let shown: Vec<_> = params.iter().take(8).map(usize::to_string).collect();
    let rest = params.len() - shown.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{} {}{more}", if params.len() == 1 { "parameter" } else { "parameters" }, shown.join(", "))
}
