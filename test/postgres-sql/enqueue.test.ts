// `outlive.enqueue` for psql, triggers and other languages: the same jobs and the same refusals as from a program.
import assert from "node:assert/strict";
import { test } from "node:test";
import { kindChoice } from "../../src/engine/options.ts";
import { assertKey, assertKind } from "../../src/job/enqueue.ts";
import { fixture } from "./fixture.ts";

test("a job enqueued by SQL is queued, with an id that sorts by time", async (t) => {
  const store = await fixture(t);
  const ids: string[] = [];
  for (let i = 0; i < 3; i++) {
    await store.pass(1);
    ids.push(await store.psql(`SELECT job_id FROM outlive.enqueue('mail', '{"to": "a"}')`));
  }
  for (const id of ids) assert.match(id, /^[0-9a-hjkmnp-tv-z]{22}$/);
  assert.deepEqual(ids.toSorted(), ids);
  assert.deepEqual(await store.sql("SELECT state, lane, priority, input, fence FROM outlive.jobs LIMIT 1"), [
    { state: 0, lane: 1, priority: 0, input: '{"to": "a"}', fence: 0 },
  ]);
});

test("a kind that no program has declared gets the defaults that a program would have", async (t) => {
  const store = await fixture(t);
  await store.psql("SELECT outlive.enqueue('brand.new')");
  const { settings } = kindChoice("brand.new", {});
  assert.deepEqual(await store.sql("SELECT * FROM outlive.kinds"), [
    {
      id: 1,
      name: "brand.new",
      paused: false,
      timeout_ms: String(settings.timeoutMs),
      max_runtime_ms: settings.maxRuntimeMs,
      grace_ms: String(settings.graceMs),
      max_errors: settings.limits.errors,
      max_timeouts: settings.limits.timeouts,
      max_crashes: settings.limits.crashes,
      backoff_type: settings.backoff.type,
      backoff_base_ms: String(settings.backoff.baseMs),
      backoff_max_ms: String(settings.backoff.maxMs),
      backoff_jitter: settings.backoff.jitter,
      on_crash: settings.onCrash,
      jobs: "0",
      keyed: false,
      fair: false,
      paused_at: null,
      paused_by: null,
      paused_reason: null,
      paused_until: null,
      retention: null,
    },
  ]);
});

test("a known id and a held key add nothing and say so", async (t) => {
  const store = await fixture(t);
  assert.equal(await store.psql("SELECT * FROM outlive.enqueue('mail', id => 'a', dedupe_key => 'k')"), "a|t");
  assert.equal(await store.psql("SELECT * FROM outlive.enqueue('mail', id => 'a')"), "a|f");
  assert.equal(await store.psql("SELECT * FROM outlive.enqueue('mail', id => 'b', dedupe_key => 'k')"), "a|f");
  assert.equal(await store.psql("SELECT * FROM outlive.enqueue('other', id => 'c', dedupe_key => 'k')"), "c|t");
  await store.sql("UPDATE outlive.jobs SET state = 2 WHERE id = 'a'");
  assert.equal(await store.psql("SELECT * FROM outlive.enqueue('mail', id => 'd', dedupe_key => 'k')"), "d|t");
  assert.deepEqual(
    await store.sql(
      "SELECT k.name, k.jobs::int + sum(d.jobs)::int AS jobs FROM outlive.kinds k JOIN outlive.kind_deltas d ON d.kind = k.id GROUP BY k.id ORDER BY 1",
    ),
    [
      { name: "mail", jobs: 2 },
      { name: "other", jobs: 1 },
    ],
  );
});

test("of two that enqueue the same key at once one creates the job, and both get its id", async (t) => {
  const store = await fixture(t);
  const sessions = await Promise.all(Array.from({ length: 8 }, () => store.session()));
  const answers = await Promise.all(
    sessions.map((one) =>
      one.sql<{ job_id: string; created: boolean }>("SELECT * FROM outlive.enqueue('mail', dedupe_key => 'k')"),
    ),
  );
  assert.equal(answers.flat().filter(({ created }) => created).length, 1);
  assert.equal(new Set(answers.flat().map(({ job_id }) => job_id)).size, 1);
});

test("a delay and an instant are kept, and what is due already can be claimed at once", async (t) => {
  const store = await fixture(t);
  await store.psql("SELECT outlive.enqueue('mail', id => 'later', delay => '90 seconds', priority => 5)");
  await store.psql("SELECT outlive.enqueue('mail', id => 'at', run_at => outlive.instant(outlive.now_ms() + 1500))");
  await store.psql("SELECT outlive.enqueue('mail', id => 'due', run_at => '2020-01-01Z')");
  assert.deepEqual(
    await store.sql(
      "SELECT id, lane, (run_at - outlive.now_ms())::int / 100 AS due, priority FROM outlive.jobs WHERE id <> 'due'",
    ),
    [
      { id: "later", lane: 0, due: 900, priority: 5 },
      { id: "at", lane: 0, due: 15, priority: 0 },
    ],
  );
  assert.equal((await store.job("due")).lane, 1);
});

test("an enqueue in a transaction that is rolled back leaves no job, no count and no wakeup", async (t) => {
  const store = await fixture(t);
  assert.equal(
    await store.psql(
      `LISTEN ${store.schema}_bell; BEGIN; SELECT created FROM outlive.enqueue('mail'); ROLLBACK; SELECT 1;`,
    ),
    "t\n1",
  );
  assert.match(
    await store.psql(`LISTEN ${store.schema}_bell; SELECT created FROM outlive.enqueue('mail');`),
    /Asynchronous notification/,
  );
  assert.equal(await store.psql("SELECT count(*) FROM outlive.jobs"), "1");
});

test("what core refuses, SQL refuses with a hint; what core takes, SQL takes", async (t) => {
  const store = await fixture(t);
  for (const kind of [
    "mail",
    "document.protected",
    "a/b:c-d_e.f",
    "",
    " mail",
    "ma il",
    "é",
    "-a",
    "a".repeat(128),
    "a".repeat(129),
  ]) {
    const bad = refuses(() => assertKind(kind));
    const asked = store.sql("SELECT outlive.enqueue($1)", [kind]);
    await (bad ? assert.rejects(asked, { code: "22023" }, kind) : asked);
  }
  for (const key of ["k", "é ü", "", "a\nb", "a\u0085b", "x".repeat(255), "x".repeat(256)]) {
    const bad = refuses(() => assertKey(key, "It"));
    for (const option of ["id", "dedupe_key"]) {
      const asked = store.sql(`SELECT outlive.enqueue('mail', ${option} => $1)`, [key]);
      await (bad ? assert.rejects(asked, { code: "22023" }, JSON.stringify(key)) : asked);
    }
  }
  for (const call of [
    "'mail', priority => 1001",
    "'mail', priority => NULL",
    "'mail', delay => '-1 second'",
    "'mail', delay => '1 second', run_at => '2030-01-01Z'",
    `'mail', '{"__proto__": {"a": 1}}'`,
  ])
    await assert.rejects(store.sql(`SELECT outlive.enqueue(${call})`), { code: "22023" }, call);
  await assert.rejects(store.sql("SELECT outlive.enqueue('mail', to_jsonb(repeat('x', 1048576)))"), { code: "54000" });
});

function refuses(check: () => void): boolean {
  try {
    check();
    return false;
  } catch {
    return true;
  }
}
