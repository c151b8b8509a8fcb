//! What both the exchange and the errors about it name: services, and the versions of perftest.

use qpair::verbs::QpType;

/// The name on the command line and in tables.
pub fn service_name(service: QpType) -> &'static str {
    match service {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
    }
}

/// The oldest version that goes on as this one does.
pub const OLDEST: f64 = 5.70;
