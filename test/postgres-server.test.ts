// The error where PostgreSQL's programs are missing: it must not ask to set what is set already.
import assert from "node:assert/strict";
import { test } from "node:test";
import { noBinaries } from "../proof/servers/postgres-server.ts";

test("without PostgreSQL's programs an error says what to install, and how to name a server instead", () => {
  assert.equal(
    noBinaries(""),
    "This needs PostgreSQL and found none. Install its programs on this machine (Debian: apt-get install postgresql), or name a server: OUTLIVE_TEST_POSTGRES_URL for tests that only need databases on it, `--store` for the demo.",
  );
});

test("with a server given, a test that needs one of its own says why the given one does not do", () => {
  const said = noBinaries("postgres://somebody:secret@somewhere/db");
  assert.match(
    said,
    /needs a PostgreSQL server of its own.*OUTLIVE_TEST_POSTGRES_URL is left in peace\. Install its programs/,
  );
  assert.doesNotMatch(said, /set OUTLIVE_TEST_POSTGRES_URL|secret/);
});
