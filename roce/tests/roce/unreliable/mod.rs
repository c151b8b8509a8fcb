//! Unreliable connections and datagrams.

mod captures;
mod hostile;
mod pair;
mod uc_faults;
mod uc_refused;
mod uc_traffic;
mod ud;
mod ud_dropped;
