// Holds that a migration which was ever released is never edited. A store keeps the checksum of each migration that made it, so an
// edited one locks out every store that has the old one. To change the tables, append a migration to the list of the store, and its
// line to the list here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ALPHABET, MAX_PRIORITY } from "../../src/job/enqueue.ts";
import { JOB_STATES } from "../../src/job/job.ts";
import { MAX_JSON_BYTES } from "../../src/job/json.ts";
import { checksumSql } from "../../src/stores/postgres/statements.ts";
import * as frozen from "../../src/stores/postgres/migrations/frozen.ts";
import { checksumOf, MIGRATIONS as POSTGRES } from "../../src/stores/postgres/migrations/index.ts";
import { stepChecksum } from "../../src/stores/released-steps.ts";
import { boundSql, LANE, NEVER_DUE, OUTCOME, STATE } from "../../src/stores/rows.ts";
import { MIGRATIONS as SQLITE } from "../../src/stores/sqlite/schema.ts";

const SQLITE_STEPS = [
  "core 76162be5baef752",
  "losses of contact 967d23bb821aeda",
  "isolation by halving 701487bfca51c99",
  "waiting d267f5bfd901be1",
  "keys abbe6468940da61",
  "fairness 9a239cf0655e512",
  "family cancels 24eec9661c596fa",
  "batches 8e2f6d753399749",
  "schedules 39626f521d2d238",
  "collections 3b3680450e7ac8a",
  "doors 36b69f44acbe39e",
  "operations 9a7b4e09de39e82",
  "traces 7c8d05268a6aab0",
  "order of all kinds 7c522d78c72dd32",
  "attempts 15f51590bbb93e4",
  "pages of parts 2203191b95ce6b1",
  "one wake for each key 240689a948efd46",
  "priorities at doors 3f42d0d51995b63",
  "slots of running jobs 1c2db43100f1b8a",
];

const POSTGRES_STEPS = [
  "core 2095e83106cf5b2", //
  "heartbeats and reclaim 6cb6fd0c34745e1",
  "views 6d922076d68a053",
  "losses of contact a9166c92aaa7082",
  "texts and limits 403bbd80b7fa311",
  "restores 53d698fd3df60fc",
  "checksums and reclaim texts b47637a4b99b1a5",
  "isolation by halving df6b79d17328bfb",
  "indexes of suspects 9a94ddd9c3bb707",
  "ticks confirm the server's clock 69573860f4ece82",
  "waiting 75303c4190827d8",
  "keys 0460cf403432043",
  "verdicts are core's f1e92ddf706b92e",
  "consequences ad53582bca8c27f",
  "fairness a8d75e9e704263f",
  "index of rings 91e02ff83cf6b17",
  "family cancels 097273bcbda49c1",
  "batches 97bb81dafecf55e",
  "submit 8cee0e7b979770a",
  "schedules 86013510d2bcdff",
  "collections bf0b10c9a50bc54",
  "operations ce485ca17d5858a",
  "open gates 2ec239581f99c1f",
  "traces 8a0abca6f13b052",
  "order of all kinds fade66dc64be601",
  "attempts 768fa7243f8753e",
  "pages of parts 4a539b0900ab73e",
  "plain jobs 753c6ecb8c94779",
  "keyed jobs in bulk d623bf8713e7254",
  "input hash 0415654d770faeb",
  "lone batches df075ba99879146",
  "bounded wakes e23758285ade244",
  "handed slots 073620b297d03ee",
  "children by state 1db4608ed19de5c",
  "unmarked ends 4eaf099b5a96ec2",
];

const EDITED =
  "A migration of record was edited, or a new one is not listed here. Undo the edit and append a migration instead; of a new one, add the line that is shown.";

test("no migration of record was edited on SQLite", () => {
  const steps = SQLITE.map(({ name, sql }) => `${name} ${stepChecksum(sql)}`);
  assert.deepEqual(steps, SQLITE_STEPS, EDITED + explained(steps, SQLITE_STEPS));
});

test("no migration of record was edited on PostgreSQL", () => {
  const steps = POSTGRES.map(({ name }, i) => `${name} ${checksumOf(i + 1)}`);
  assert.deepEqual(steps, POSTGRES_STEPS, EDITED + explained(steps, POSTGRES_STEPS));
});

test("a step that is sent in another order than it was released in has the same statements, and locks", () => {
  const statements = (text: string): string[] =>
    text
      .replaceAll(/--.*$/gm, "")
      .split(";")
      .map((statement) => statement.trim())
      .filter((statement) => statement !== "" && !statement.startsWith("LOCK TABLE"))
      .sort();
  const sent = POSTGRES.filter((migration) => migration.sent);
  assert.deepEqual(
    sent.map(({ name }) => name),
    ["losses of contact"],
  );
  for (const migration of sent) assert.deepEqual(statements(migration.sent!("s")), statements(migration.up("s")));
});

function explained(found: readonly string[], kept: readonly string[]): string {
  return `\nfound: ${found.join(", ")}\nkept:  ${kept.join(", ")}`;
}

test("the checksum of a migration changes with a statement, and not with a comment or white space", () => {
  const text = "CREATE TABLE a (b integer); -- why\n  CREATE INDEX c ON a (b);";
  assert.match(stepChecksum(text), /^[0-9a-f]{15}$/);
  assert.equal(stepChecksum(text), stepChecksum("-- because\nCREATE TABLE a (b integer);\nCREATE INDEX c ON a (b);"));
  assert.notEqual(stepChecksum(text), stepChecksum(text.replace("integer", "bigint")));
});

// The functions in a schema hold these values. Has the engine another one, the functions need a new migration that replaces them;
// then the value here is compared no more.
test("the constants that released PostgreSQL functions hold are still those of the engine", () => {
  // What only functions hold that were replaced since is not compared.
  const {
    deathsElsewhere: _,
    ALONE_FROM_CRASHES: __,
    resolvedDeathsElsewhere: ___,
    condemnedElsewhere: ____,
    HARD_LIMIT: _____,
    BACKGROUND_MS: ______,
    suspectBound,
    checksum,
    ...constants
  } = frozen;
  const { "timed-out": timedOut, crashed, released, cancelled, lost, waiting } = OUTCOME;
  assert.deepEqual(
    { ...constants },
    {
      ALPHABET,
      MAX_PRIORITY,
      MAX_JSON_BYTES,
      JOB_STATES,
      STATE,
      LANE: { delayed: LANE.delayed, open: LANE.open, alone: LANE.suspect, held: LANE.held },
      NEVER_DUE,
      OUTCOME: { "timed-out": timedOut, crashed, released, cancelled, lost, waiting },
    },
  );
  assert.equal(suspectBound, boundSql(""));
  assert.equal(checksum("content", "owner"), checksumSql("content", "owner"));
});
