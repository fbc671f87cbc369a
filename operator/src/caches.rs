//! Everything the operator has made, kept in memory by watches.
//!
//! Invariants: only objects with the operator's label are watched, so memory grows with resources, not with the cluster; what
//! nobody here reads is dropped before it is kept; Secrets are not among the kinds.

use std::fmt::Debug;

use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::reflector::store::WriterDropped;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::names::{LABEL_INSTANCE, LABEL_MANAGED_BY, OPERATOR};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

/// The objects the operator has made.
pub struct Caches {
    /// Configurations.
    pub config_maps: Store<ConfigMap>,
    /// Identities.
    pub service_accounts: Store<ServiceAccount>,
    /// Budgets.
    pub disruption_budgets: Store<PodDisruptionBudget>,
    /// Fleets.
    pub deployments: Store<Deployment>,
    /// Migrations.
    pub jobs: Store<Job>,
    /// Pods of fleets and migrations.
    pub pods: Store<Pod>,
    filled: OnceCell<()>,
}

/// The resources that something happened to.
pub type Touched = SelectAll<BoxStream<'static, ObjectRef<InboxOutbox>>>;

impl Caches {
    /// Caches of a namespace, or of all. They fill while the second value is polled.
    pub fn new(client: &Client, namespace: Option<&str>) -> (Self, Touched) {
        let mut touched = SelectAll::new();
        let caches = Self {
            config_maps: cache(client, namespace, &mut touched),
            service_accounts: cache(client, namespace, &mut touched),
            disruption_budgets: cache(client, namespace, &mut touched),
            deployments: cache(client, namespace, &mut touched),
            jobs: cache(client, namespace, &mut touched),
            pods: cache(client, namespace, &mut touched),
            filled: OnceCell::new(),
        };
        (caches, touched)
    }

    /// Waits until every cache has been filled once. Any number may wait.
    ///
    /// # Errors
    /// When the watches have ended.
    pub async fn filled(&self) -> Result<(), WriterDropped> {
        // A store wakes only the last of those that wait for it, so one waits for all.
        self.filled
            .get_or_try_init(|| self.each_filled())
            .await
            .copied()
    }

    async fn each_filled(&self) -> Result<(), WriterDropped> {
        self.config_maps.wait_until_ready().await?;
        self.service_accounts.wait_until_ready().await?;
        self.disruption_budgets.wait_until_ready().await?;
        self.deployments.wait_until_ready().await?;
        self.jobs.wait_until_ready().await?;
        self.pods.wait_until_ready().await
    }
}

/// The objects of a kind in a namespace, or in all.
pub fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn cache<K>(client: &Client, namespace: Option<&str>, touched: &mut Touched) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let ours = watcher::Config::default().labels(&format!("{LABEL_MANAGED_BY}={OPERATOR}"));
    let stream = watcher(api::<K>(client, namespace), ours)
        .default_backoff()
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .touched_objects()
        .filter_map(|object| future::ready(resource_of(object)));
    touched.push(stream.boxed());
    store
}

/// The resource that an object belongs to. Watches recover by themselves; that they had to is worth a line.
fn resource_of<K: Resource<DynamicType = ()>>(
    object: Result<K, watcher::Error>,
) -> Option<ObjectRef<InboxOutbox>> {
    match object {
        Ok(object) => {
            let name = object.labels().get(LABEL_INSTANCE)?;
            Some(ObjectRef::new(name).within(&object.namespace()?))
        }
        Err(error) => {
            tracing::warn!(
                "The watch of {} was interrupted and begins again: {error}",
                K::plural(&())
            );
            None
        }
    }
}
