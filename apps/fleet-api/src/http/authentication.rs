//! Who calls.

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};

use super::problem::Problem;
use crate::fleet::{self, DomainId, Fleet, NodeId, Operator};
use crate::redacted::Redacted;

/// The longest credential that is looked at.
const MAX_CREDENTIAL_LEN: usize = 512;

/// A node that proved who it is.
#[derive(Clone, Debug)]
pub struct CallingNode {
    /// Which node.
    pub id: NodeId,
    /// Its domain.
    pub domain: DomainId,
    /// The name of the key it used.
    pub key_id: String,
    /// The key itself, as it was sent.
    pub key: Redacted<String>,
}

/// The node whose key the request carries, on a path that is its own.
///
/// # Errors
/// 401 `unauthorized`, `nsk_invalid` or `nsk_revoked`; 403 `node_id_mismatch`.
pub fn node(fleet: &Fleet, headers: &HeaderMap, path_id: &str) -> Result<CallingNode, Problem> {
    let presented = bearer(headers)?;
    let Some(key) = fleet.node_key(presented) else {
        return Err(Problem::unauthorized("nsk_invalid", "the node secret key is not known"));
    };
    if key.revoked {
        return Err(Problem::unauthorized("nsk_revoked", "the node secret key was revoked"));
    }
    if fleet::uuid(path_id) != Some(key.node.uuid()) {
        let detail = "the node secret key belongs to another node than the path names";
        return Err(Problem::new(StatusCode::FORBIDDEN, "node_id_mismatch", detail));
    }
    Ok(CallingNode {
        id: key.node,
        domain: key.domain,
        key_id: key.key_id.clone(),
        key: Redacted::new(presented.to_owned()),
    })
}

/// The operator whose token the request carries.
///
/// # Errors
/// 401 `unauthorized`.
pub fn operator<'a>(fleet: &'a Fleet, headers: &HeaderMap) -> Result<&'a Operator, Problem> {
    let unknown = || Problem::unauthorized("unauthorized", "the token is not known");
    fleet.operator(bearer(headers)?).ok_or_else(unknown)
}

/// The one bearer credential of a request (RFC 6750).
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let wrong =
        || Problem::unauthorized("unauthorized", "send one header \"Authorization: Bearer <credential>\"");
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(wrong()) };
    let (scheme, credential) =
        value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(wrong)?;
    let credential = credential.trim_matches(' ');
    let is_token = |byte: u8| byte.is_ascii_graphic();
    let well_formed =
        (1..=MAX_CREDENTIAL_LEN).contains(&credential.len()) && credential.bytes().all(is_token);
    if scheme.eq_ignore_ascii_case("bearer") && well_formed { Ok(credential) } else { Err(wrong()) }
}
