//! The wire formats: against packets of Linux' rdma_rxe, and both ways for all that there is.

mod captures;
mod cm;
mod round_trip;
