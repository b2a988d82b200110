// Holds the text of `status` with a fixed clock: what it shows, what it advises, and how it fits a small screen.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Survey, statusOf } from "../../src/cli/advice.ts";
import { statusLines } from "../../src/cli/commands/status.ts";
import type { KnownWorker } from "../../src/cli/lookup.ts";
import type { Pen } from "../../src/cli/terminal.ts";
import { widthOf } from "../../src/cli/words.ts";
import type { KindCounts } from "../../src/stores/port.ts";
import { serverSummary as ofPostgres } from "../../src/stores/postgres/inspect.ts";
import { serverSummary as ofRedis } from "../../src/stores/redis/inspect.ts";
import { fileSummary as ofFile } from "../../src/stores/sqlite/inspect.ts";

const NOW = Date.parse("2026-11-15T12:00:00Z");
const PAPER: Pen = { style: (_, text) => text, columns: 120, isTty: false };
const screen = (columns: number): Pen => ({ ...PAPER, columns, isTty: true });

function aKind(kind: string, given: Partial<KindCounts> = {}): KindCounts {
  return {
    kind,
    paused: false,
    ready: 0,
    oldestReadyMs: null,
    delayed: 0,
    held: 0,
    running: 0,
    succeeded: 0,
    dead: 0,
    cancelled: 0,
    quarantined: 0,
    ...given,
  };
}

function aWorker(id: string, given: Partial<KnownWorker> = {}): KnownWorker {
  return {
    id,
    host: "here",
    pid: 4242,
    version: "0.1.0",
    known: "live",
    kinds: ["mail", "render"],
    concurrency: 10,
    heldCount: 3,
    startedAt: NOW - 60_000,
    heartbeatAt: NOW - 2_000,
    heartbeatAgeMs: 2_000,
    beats: 2,
    leaseMs: 90_000,
    loopLagMs: 1,
    lastWord: null,
    ...given,
  };
}

function aSurvey(given: Partial<Survey> = {}): Survey {
  return {
    at: NOW,
    store: {
      ok: true,
      summary: ["/srv/app/outlive.db", "12.3 MB", "durability full", "journal wal"],
      detail: {},
      blockedBy: null,
    },
    kinds: [],
    workers: [],
    incidents: [],
    failing: new Map(),
    lastQuarantinedAt: null,
    corruptCount: 0,
    schedules: { undeclared: [], differingZoneData: [] },
    ...given,
  };
}

const MAX_AGE = 300_000;
const text = (survey: Survey, before: Survey | null = null, pen = PAPER, rows?: number): string =>
  statusLines(statusOf(survey, before, MAX_AGE), pen, rows).join("\n");

test("the store's line: the path of a file or which server, and its main facts; what does not fit is on the next line", () => {
  const lines = (summary: Survey["store"]["summary"], pen = screen(80)): string =>
    text(aSurvey({ store: { ok: true, summary, detail: {}, blockedBy: null } }), null, pen)
      .split("\n\n", 1)[0]!
      .replace(/^.*\n/, "");
  const line = (summary: Survey["store"]["summary"]): string => {
    const all = lines(summary);
    assert.ok(!all.includes("\n"), all);
    return all;
  };
  const file = {
    path: "/srv/very/long/path/to/the/app/outlive.db",
    bytes: 385_024,
    durability: "full",
    journalMode: "wal",
  };
  assert.equal(
    lines(ofFile(file)),
    "store ok  /srv/very/long/path/to/the/app/outlive.db  385 kB, durability full\n          journal wal",
  );
  const whole = "store ok  /srv/a/path/of/the/app/outlive.db  385 kB, durability full, journal wal";
  assert.equal(lines(ofFile({ ...file, path: "/srv/a/path/of/the/app/outlive.db" }), screen(whole.length + 1)), whole);
  assert.match(
    lines(ofFile({ ...file, path: `/srv/${"long/".repeat(20)}outlive.db` })),
    /^store ok  ….{68}\n {10}385 kB, /,
  );
  const server = {
    server: "17.2 (Debian 17.2-1)",
    database: "app",
    schema: "outlive",
    sessions: 3,
    fsync: "on",
    replica: false,
  };
  assert.equal(line(ofPostgres(server)), "store ok  PostgreSQL 17.2  database app, schema outlive, 3 sessions");
  assert.match(line(ofPostgres({ ...server, fsync: "off", sessions: 1 })), /schema outlive, 1 session, fsync off$/);
  assert.match(line(ofPostgres({ ...server, replica: true })), /, a replica$/);
  const long = { ...server, database: "the_database_of_the_warehouse", fsync: "off", replica: true };
  assert.equal(
    lines(ofPostgres(long)),
    `store ok  PostgreSQL 17.2  database the_database_of_the_warehouse
          schema outlive, 3 sessions, fsync off, a replica`,
  );
  const redis = { runs: 2, operations: 1_204, redis_version: "7.4.1", aof_enabled: "1", used_memory: "1468006" };
  assert.equal(line(ofRedis(redis)), "store ok  Redis 7.4.1  append-only file, 1.5 MB, 1204 operations");
  const flushed = { ...redis, appendfsync: "everysec" };
  assert.match(line(ofRedis(flushed)), /^store ok {2}Redis 7.4.1 {2}flushed every second, /);
  const valkey = { runs: 1, operations: 1, redis_version: "7.2.4", valkey_version: "8.1.0", aof_enabled: "0" };
  assert.equal(line(ofRedis(valkey)), "store ok  Valkey 8.1.0  no append-only file, 1 operation");
  assert.equal(line(ofRedis({ runs: 1, operations: 0 })), "store ok  Redis  0 operations", "its user may not ask");
});

test("when all is well it says so and advises nothing", () => {
  const survey = aSurvey({
    kinds: [aKind("mail", { ready: 1_200, oldestReadyMs: 3_200, running: 3 }), aKind("render", { delayed: 7 })],
    workers: [aWorker("here-4242-a")],
  });
  assert.equal(
    text(survey),
    `All is well  2026-11-15 12:00:00Z
store ok  /srv/app/outlive.db  12.3 MB, durability full, journal wal

KIND    READY  OLDEST  DELAYED  RUNNING  DONE  DEAD  QUARANT.
mail    1,200    3.2s        -        3     -     -         -
render      -       -        7        -     -     -         -

WORKER        PID  STATE     HELD  HEARTBEAT  LOOP LAG
here-4242-a  4242  live   3 of 10     2s ago       1ms`,
  );
});

test("held jobs have a column, only if a limit holds any, and all fits 80 columns", () => {
  const kinds = [aKind("sync", { delayed: 7, held: 1_200, running: 3, dead: 1 }), aKind("render", { ready: 2 })];
  const survey = aSurvey({ kinds, workers: [aWorker("here-4242-a", { kinds: ["sync", "render"] })] });
  assert.ok(
    text(survey).includes(`
KIND    READY  OLDEST  DELAYED   HELD  RUNNING  DONE  DEAD  QUARANT.
sync        -       -        7  1,200        3     -     1         -
render      2       -        -      -        -     -     -         -
`),
    text(survey),
  );
  const before = aSurvey({ ...survey, at: NOW - 1_000 });
  for (const line of text(survey, before, screen(80)).split("\n")) assert.ok(widthOf(line) <= 80, line);
  assert.ok(!text(aSurvey({ kinds: [aKind("sync", { delayed: 7 })] })).includes("  HELD  RUNNING"));
});

test("a kind whose jobs fail at every attempt is never well: it says how many, with the latest error", () => {
  const failing = new Map([["pay", { jobs: 12, latest: "pay-7", lastError: "TypeError: the bank said no" }]]);
  const survey = aSurvey({
    kinds: [aKind("pay", { delayed: 12 }), aKind("mail", { succeeded: 1_234_567 })],
    workers: [aWorker("here-4242-a")],
    failing,
  });
  assert.equal(
    text(survey),
    `Running; see what to do next  2026-11-15 12:00:00Z
store ok  /srv/app/outlive.db  12.3 MB, durability full, journal wal

KIND  READY  OLDEST  DELAYED  RUNNING       DONE  FAILING  DEAD  QUARANT.
pay       -       -       12        -          -       12     -         -
mail      -       -        -        -  1,234,567        -     -         -

WORKER        PID  STATE     HELD  HEARTBEAT  LOOP LAG
here-4242-a  4242  live   3 of 10     2s ago       1ms

WHAT TO DO NEXT
- 12 jobs of pay failed and wait for another attempt; the latest: TypeError: the bank said no
  outlive job pay-7`,
  );
});

test("kinds that no live worker knows fade out when nothing of them is left to do, and are counted", () => {
  const workers = [aWorker("here-1-a", { kinds: ["mail"] })];
  const kinds = [aKind("mail"), aKind("old", { succeeded: 7 }), aKind("older"), aKind("broken", { dead: 1 })];
  const lines = text(aSurvey({ kinds, workers })).split("\n");
  assert.deepEqual(
    lines.slice(4, 7).map((line) => line.split(" ")[0]),
    ["mail", "broken", "2"],
  );
  assert.equal(lines[6], "2 former kinds are not shown: nothing of them is left to do");
  const alone = text(aSurvey({ kinds }));
  assert.ok(alone.includes("\nold") && alone.includes("\nolder"), "without a worker nothing says which kinds exist");
});

test("two looks make a rate", () => {
  const before = aSurvey({ at: NOW - 2_000, kinds: [aKind("mail", { succeeded: 100 }), aKind("render")] });
  const survey = aSurvey({ kinds: [aKind("mail", { succeeded: 341 }), aKind("render", { succeeded: 3 })] });
  assert.deepEqual(
    statusOf(survey, before, MAX_AGE).kinds.map(({ perSecond }) => perSecond),
    [120.5, 1.5],
  );
  assert.match(text(survey, before), /DONE\/S/);
  assert.match(text(survey, before), /\nmail .* 121 /);
  assert.match(text(survey, before), /\nrender .* 1\.5 /);
});

test("a count that fell, or a kind that is new, has no rate", () => {
  const before = aSurvey({ at: NOW - 1_000, kinds: [aKind("mail", { succeeded: 100 })] });
  const survey = aSurvey({ kinds: [aKind("mail", { succeeded: 50 }), aKind("render", { succeeded: 5 })] });
  assert.deepEqual(
    statusOf(survey, before, MAX_AGE).kinds.map(({ perSecond }) => perSecond),
    [null, null],
  );
});

const TROUBLED = aSurvey({
  kinds: [
    aKind("import", { paused: true, ready: 1, oldestReadyMs: 900_000 }),
    aKind("mail", { ready: 12, oldestReadyMs: 720_000, running: 5, dead: 3 }),
    aKind("poison", { quarantined: 2 }),
    aKind("report", { ready: 1_500, oldestReadyMs: 100, dead: 1 }),
  ],
  workers: [
    aWorker("here-1-a", { known: "blocked", loopLagMs: 12_000 }),
    aWorker("here-2-b", { known: "silent", pid: 2, heartbeatAgeMs: 150_000 }),
    aWorker("here-3-c", { known: "gone", pid: 3, heldCount: 1 }),
  ],
  incidents: [
    {
      id: "01m7gfy4ze7jk813facz5r",
      recovery: "r",
      worker: "here-9-z",
      how: "gone",
      resolution: null,
      detectedAt: NOW - 65_000,
      completedAt: NOW - 64_988,
      jobCount: 4,
    },
    {
      id: "01m7gfy4ze7jk813facz5q",
      recovery: "q",
      worker: "here-8-y",
      how: "silent",
      resolution: null,
      detectedAt: NOW - 7_200_000,
      completedAt: null,
      jobCount: 1_000,
    },
  ],
  lastQuarantinedAt: NOW - 3_600_000,
});

test("trouble is named, the worst first, each with the command that helps", () => {
  assert.equal(
    text(TROUBLED),
    `3 things need you  2026-11-15 12:00:00Z
store ok  /srv/app/outlive.db  12.3 MB, durability full, journal wal

KIND             READY  OLDEST  DELAYED  RUNNING  DONE  DEAD  QUARANT.
import (paused)      1     15m        -        -     -     -         -
mail                12     12m        -        5     -     3         -
poison               -       -        -        -     -     -         2
report           1,500   100ms        -        -     -     1         -

WORKER     PID  STATE       HELD  HEARTBEAT  LOOP LAG
here-1-a  4242  blocked  3 of 10     2s ago       12s
here-2-b     2  silent   3 of 10   2.5m ago       1ms
here-3-c     3  gone     1 of 10     2s ago       1ms

INCIDENT                    WHEN  WORKER    HOW      JOBS     RECOVERED
01m7gfy4ze7jk813facz5r  1.1m ago  here-9-z  gone        4       in 12ms
01m7gfy4ze7jk813facz5q    2h ago  here-8-y  silent  1,000  not finished

WHAT TO DO NEXT
! 1,500 jobs are ready (report 1,500), and no live worker knows that kind.
  outlive work
! The oldest ready job of mail has waited for 12m; 12 are ready.
  Start more workers (outlive work), or raise their concurrency.
! 2 jobs are quarantined (the latest 1h ago): their workers died while they ran alone.
  outlive quarantine list
- The event loop of worker here-1-a (pid 4242) has been blocked for 12s; it holds 3 jobs.
  outlive jobs --state running
- Worker here-2-b (pid 2) has been silent for 2.5m (its lease is 1.5m) and holds 3 jobs.
  outlive recover --wait
- Worker here-3-c (pid 3) is gone and holds 1 job.
  outlive recover
- 4 jobs are dead (mail 3, report 1).
  outlive jobs --state dead, then: outlive retry --state dead
- The kind import is paused; 1 job waits.
  outlive resume import`,
  );
});

test("a small terminal is never overrun, and the most urgent stays on it", () => {
  for (const [columns, rows] of [
    [80, 23],
    [120, 39],
    [200, 60],
  ] as const) {
    const lines = statusLines(statusOf(TROUBLED, null, MAX_AGE), screen(columns), rows);
    assert.ok(lines.length <= rows, `${lines.length} lines on ${rows}`);
    assert.ok(
      lines.every((line) => widthOf(line) < columns),
      lines.join("\n"),
    );
    assert.match(lines.join("\n"), /! 1,500 jobs are ready/);
  }
});

test("a hundred kinds and workers are cut to the screen, the troubled ones kept", () => {
  const names = Array.from({ length: 100 }, (_, n) => `kind-${n}`);
  const survey = aSurvey({
    kinds: names.map((name, n) => aKind(name, { quarantined: n === 77 ? 1 : 0 })),
    workers: names.map((_, n) => aWorker(`here-${n}`, n === 66 ? { known: "silent" } : { kinds: names })),
  });
  const lines = statusLines(statusOf(survey, null, MAX_AGE), screen(100), 30);
  assert.ok(lines.length <= 30);
  assert.match(lines.join("\n"), /\nkind-77 /);
  assert.match(lines.join("\n"), /\nhere-66 /);
  assert.match(lines.join("\n"), /… and \d+ more kinds\n/);
  assert.match(lines.join("\n"), /… and \d+ more workers\n/);
});

const codes = (survey: Survey): string[] =>
  statusOf(survey, null, MAX_AGE).advice.map(({ code, needsPerson }) => `${code}${needsPerson ? "!" : ""}`);

test("what needs a person, and what does not", () => {
  const live = [aWorker("w")];
  const ready = { ready: 1, oldestReadyMs: 1_000 };
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", ready)], workers: live })), []);
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", ready)] })), ["no-worker!"]);
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("other", ready)], workers: live })), ["no-worker!"]);
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", { ...ready, paused: true })] })), ["paused"]);
  const schedules = {
    undeclared: ["nightly"],
    differingZoneData: [
      { version: "2025b", workers: ["a", "b", "c"] },
      { version: "2026a", workers: ["d"] },
    ],
  };
  const review = aSurvey({ kinds: [], workers: live, schedules });
  assert.deepEqual(codes(review), ["schedules-undeclared", "time-zones-differ"]);
  assert.match(text(review), /No live worker declares 1 schedule: nightly\./);
  assert.match(
    text(review),
    /different time-zone data, and may disagree about when schedules are due: 2025b on a and 2 more; 2026a on d\./,
  );
  assert.deepEqual(codes(aSurvey({ kinds: [], schedules })), [], "no worker is there to declare any");
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", { delayed: 1 })] })), []);
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", { ready: 1, oldestReadyMs: 300_001 })], workers: live })), [
    "too-old!",
  ]);
  assert.deepEqual(codes(aSurvey({ kinds: [aKind("mail", { dead: 9 })] })), ["dead"]);
  const quarantined = [aKind("mail", { quarantined: 1 })];
  assert.deepEqual(codes(aSurvey({ kinds: quarantined, lastQuarantinedAt: NOW - 86_399_000 })), ["quarantined!"]);
  assert.deepEqual(codes(aSurvey({ kinds: quarantined, lastQuarantinedAt: NOW - 86_401_000 })), ["quarantined"]);
  assert.deepEqual(codes(aSurvey({ store: { ok: false, summary: ["a store"], detail: {}, blockedBy: null } })), [
    "store-not-ok!",
  ]);
});

test("a dead worker's jobs need a person only when no live worker can take them", () => {
  const gone = aWorker("g", { known: "gone" });
  assert.deepEqual(codes(aSurvey({ workers: [gone] })), ["stranded!"]);
  assert.deepEqual(codes(aSurvey({ workers: [aWorker("s", { known: "silent" })] })), ["stranded!"]);
  assert.deepEqual(codes(aSurvey({ workers: [gone, aWorker("w")] })), ["worker-gone"]);
  assert.deepEqual(codes(aSurvey({ workers: [aWorker("g", { known: "gone", heldCount: 0 })] })), ["worker-gone"]);
});

test("while the store is blocked its holder is named, and no silent worker is blamed", () => {
  const survey = aSurvey({
    store: { ok: true, summary: ["a store"], detail: {}, blockedBy: { pid: 77, command: "node stuck.ts" } },
    kinds: [aKind("mail", { ready: 5, oldestReadyMs: 1 })],
    workers: [aWorker("w", { known: "silent" })],
  });
  assert.deepEqual(codes(survey), ["store-blocked!"]);
  assert.match(text(survey), /! Process 77 \(node stuck\.ts\) holds the store's write lock/);
});

test("without a worker nothing is called well, whether or not a job is ready", () => {
  const dead = aSurvey({ kinds: [aKind("mail", { dead: 1 })] });
  assert.match(text(dead), /^No worker is alive; see what to do next {2}2026/);
  const idle = aSurvey({ kinds: [aKind("mail", { delayed: 7, succeeded: 3 })] });
  assert.match(text(idle), /^No worker is alive; no job is ready {2}2026/);
});

test("an empty store says how to begin", () => {
  assert.match(text(aSurvey()), /The store has no kinds yet.*outlive work/);
  assert.match(text(aSurvey()), /No worker is alive\. Start one: outlive work/);
});
