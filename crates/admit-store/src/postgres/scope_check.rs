//! The CHECK that closes the set of scopes. It only grows: another replica, older or newer, may use another set.

use admit::{Scope, Scopes};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Transaction};

const CONSTRAINT: &str = "rate_budgets_scope_check";

/// How far the constraint is.
#[derive(Debug)]
pub(super) struct Standing {
    /// Whether there is one.
    exists: bool,
    /// The scopes it has.
    present: Vec<String>,
    /// The scopes of the store that it lacks.
    pub(super) missing: Vec<String>,
    /// Whether all rows are known to hold to it.
    pub(super) validated: bool,
}

pub(super) async fn look(client: &Client, schema: &str, scopes: &Scopes) -> Result<Standing, Error> {
    const ASK: &str = "SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint \
                       WHERE conrelid = to_regclass($1) AND conname = $2";
    let table = format!("{schema}.rate_budgets");
    let params = [(&table as _, Type::TEXT), (&CONSTRAINT as _, Type::TEXT)];
    let row = client.query_typed_opt(ASK, &params).await?;
    let (exists, present, validated) = match row {
        Some(row) => (true, listed(row.try_get(0)?), row.try_get(1)?),
        None => (false, Vec::new(), false),
    };
    let missing = scopes
        .iter()
        .map(|scope| scope.as_str().to_owned())
        .filter(|scope| !present.contains(scope))
        .collect();
    Ok(Standing { exists, present, missing, validated })
}

/// Puts the scopes that are missing into the constraint, without a look at the rows: those that are there hold to the
/// smaller set.
pub(super) async fn grow(transaction: &Transaction<'_>, schema: &str, scopes: &Scopes) -> Result<(), Error> {
    let standing = look(transaction.client(), schema, scopes).await?;
    if standing.missing.is_empty() {
        return Ok(());
    }
    let mut all: Vec<String> = standing.present.into_iter().chain(standing.missing).collect();
    all.sort();
    let list: Vec<String> = all.iter().map(|scope| format!("'{scope}'")).collect(); // Scopes hold no quotes.
    let drop = if standing.exists { format!("DROP CONSTRAINT {CONSTRAINT}, ") } else { String::new() };
    let sql = format!(
        "ALTER TABLE {schema}.rate_budgets {drop}\
         ADD CONSTRAINT {CONSTRAINT} CHECK (scope = ANY (ARRAY[{}]::text[])) NOT VALID",
        list.join(", ")
    );
    transaction.batch_execute(&sql).await
}

/// Lets the server look at the rows, which takes no lock that a take would wait for.
pub(super) async fn validate(
    transaction: &Transaction<'_>,
    schema: &str,
    scopes: &Scopes,
) -> Result<(), Error> {
    if look(transaction.client(), schema, scopes).await?.validated {
        return Ok(());
    }
    let sql = format!("ALTER TABLE {schema}.rate_budgets VALIDATE CONSTRAINT {CONSTRAINT}");
    transaction.batch_execute(&sql).await
}

/// The scopes in the server's text of a constraint, as in `CHECK ((scope = ANY (ARRAY['a'::text, 'b'::text])))`.
fn listed(definition: &str) -> Vec<String> {
    let literals = definition.split('\'').skip(1).step_by(2);
    literals.filter(|literal| literal.parse::<Scope>().is_ok()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_text_is_read_in_every_form_it_has() {
        assert_eq!(listed("CHECK ((scope = ANY (ARRAY['a'::text, 'b-c'::text]))) NOT VALID"), ["a", "b-c"]);
        assert_eq!(listed("CHECK ((scope = 'a'::text))"), ["a"]);
        assert!(listed("CHECK (true)").is_empty());
    }
}
