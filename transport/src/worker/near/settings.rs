//! What the settings and the environment say, before topology is asked.

use std::env;

use qpair_topology::PciAddress;
use qpair_verbs::Device;

use super::{Near, NearError, Placement};
use crate::worker::config::Config;
use crate::worker::error::WorkerError;
use crate::worker::rails::Rail;

/// Settings with the rails of their worker, and its device.
#[derive(Debug)]
pub(in crate::worker) struct Placed {
    pub(in crate::worker) config: Config,
    pub(in crate::worker) device: String,
    pub(in crate::worker) reason: String,
    /// True if topology named the device.
    pub(in crate::worker) is_chosen: bool,
    /// As of [`Placement`].
    pub(in crate::worker) through: Option<PciAddress>,
}

impl Config {
    /// The device that a worker with these settings opens, its rails, and why.
    ///
    /// ```
    /// let placement = qpair_transport::Config::default().device("mlx5_0").placement()?;
    /// assert_eq!((placement.device.as_str(), placement.reason.as_str()), ("mlx5_0", "as the settings say"));
    /// # Ok::<(), qpair_transport::NearError>(())
    /// ```
    ///
    /// # Errors
    /// [`NearError`] if topology is to name them, and can not.
    pub fn placement(&self) -> Result<Placement, NearError> {
        let named = |device: &str, reason: &str| Placement {
            device: device.to_owned(),
            rails: vec![Rail::device(device)],
            is_chosen: false,
            reason: reason.to_owned(),
            through: None,
        };
        let placement = if let Some(name) = &self.device {
            named(name, "as the settings say")
        } else if let Some(name) = self.rails.first().and_then(Rail::device_name) {
            named(name, "as the first rail of the settings says")
        } else if let Some(name) = Config::device_of_environment() {
            named(&name, "as QPAIR_DEVICE says")
        } else if let (false, None) = (self.rails.is_empty(), &self.near) {
            named(Device::SOFTWARE, "as rails are that name no device")
        } else {
            self.near.clone().unwrap_or_else(|| Near::thread().at_most(1)).placement()?
        };
        let rails = if self.rails.is_empty() { placement.rails } else { self.rails.clone() };
        Ok(Placement { rails, ..placement })
    }

    /// The device that QPAIR_DEVICE in the environment names, if it does: that of workers whose settings name none.
    pub fn device_of_environment() -> Option<String> {
        env::var("QPAIR_DEVICE").ok().filter(|name| !name.is_empty())
    }

    /// The same settings with the rails of a worker of its own.
    pub(in crate::worker) fn placed(mut self) -> Result<Placed, NearError> {
        let Placement { device, rails, reason, is_chosen, through } = self.placement()?;
        // A device alone is used the same way without rails.
        if self.rails.is_empty() && rails != [Rail::device(&device)] {
            self.rails = rails;
        }
        Ok(Placed { config: self, device, reason, is_chosen, through })
    }

    /// The same for a device that is open already.
    pub(in crate::worker) fn placed_on(mut self, device: &str) -> Result<Placed, NearError> {
        let placed = |config, reason, through| {
            let device = device.to_owned();
            Placed { config, device, reason, is_chosen: false, through }
        };
        let Some(near) = self.near.take().filter(|_| self.rails.is_empty()) else {
            return Ok(placed(self, "opened by the application".to_owned(), None));
        };
        let Placement { mut rails, reason, through, .. } = near.placement()?;
        rails.sort_by_key(|rail| rail.device_name() != Some(device));
        if rails.first().and_then(Rail::device_name) != Some(device) {
            return Err(NearError::NotThat { device: device.to_owned(), reason });
        }
        self.rails = rails;
        Ok(placed(self, reason, through))
    }
}

/// The error of a worker that can not be made. Whoever has not named the device can not know what to do about it; what is wrong
/// with the settings is wrong on any.
pub(in crate::worker) fn told_who_chose(
    error: WorkerError,
    is_chosen: bool,
    device: String,
    reason: String,
) -> WorkerError {
    let is_of_settings = matches!(error, WorkerError::Config { .. } | WorkerError::ClusterKey(_));
    if !is_chosen || device == Device::SOFTWARE || is_of_settings {
        return error;
    }
    WorkerError::Chosen { device, reason, source: Box::new(error) }
}
