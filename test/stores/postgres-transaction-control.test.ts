// Which statements of a callback are transaction control, by their first words.
import assert from "node:assert/strict";
import { test } from "node:test";
import { isTransactionControl } from "../../src/stores/postgres/transaction.ts";

test("transaction control is known by its first words, whatever is before and between them", () => {
  for (const sql of [
    "BEGIN",
    "begin isolation level serializable",
    "Commit;",
    "END WORK",
    "abort",
    "ROLLBACK",
    "rollback;",
    "rollback work",
    "rollback transaction and chain",
    "ROLLBACK PREPARED 'x'",
    "start transaction",
    "START\n/* now */TRANSACTION read only",
    "prepare transaction 'x'",
    " \t\r\n\f\v COMMIT",
    "-- first\nCOMMIT",
    "-- first\r-- second\n\nCOMMIT",
    "/* a */ /* b */COMMIT",
    "/* a /* nested */ still a comment */ COMMIT",
    "/**/COMMIT/**/",
    ";; ; /* empty */ ; COMMIT",
  ])
    assert.equal(isTransactionControl(sql), true, sql);
});

test("everything else may run", () => {
  for (const sql of [
    "",
    "   ",
    "--",
    "-- COMMIT",
    "/* COMMIT",
    "/* /* */ COMMIT",
    "SELECT 1; COMMIT",
    "SAVEPOINT a",
    "release savepoint a",
    "rollback to a",
    "ROLLBACK /* back */ TO SAVEPOINT a",
    "rollback work to a",
    "rollback transaction -- back\n to savepoint a",
    "prepare a AS SELECT 1",
    "START_TRANSACTION",
    "committed",
    "commit_log",
    "commit$",
    "endé",
    '"commit"',
    "(SELECT 1)",
    "begin_tx()",
  ])
    assert.equal(isTransactionControl(sql), false, sql);
});

test("a text of a million characters is read in linear time", () => {
  for (const part of ["/* a */", "/*", "-- a\n", ";", " ", "/**/;"]) {
    const began = performance.now();
    assert.equal(isTransactionControl(part.repeat(1_000_000 / part.length)), false);
    assert.ok(performance.now() - began < 2_000, part);
  }
});
