// Holds the readable account of a recovery: the text that operators know, and the fields that programs read.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  failedReport,
  type Incident,
  type IncidentJob,
  recoveryReport,
  reportText,
  withFailures,
} from "../../src/recovery/incident.ts";
import { isNoteworthy, type Opening } from "../../src/stores/store-parts.ts";
import { counted } from "../support/samples.ts";

const STARTED = Date.parse("2024-01-15T10:30:00Z");
/** What a store says of its own open. */
const FLUSHED = { lines: ["WAL Checkpointed: 145 frames"], facts: { walFramesCheckpointed: 145 } };
const RESTORED = {
  lines: ["Journal Mode: restored to WAL (it was delete)"],
  facts: { journalWas: "delete", walHeldBack: null },
};

function aJob(jobId: string, given: Partial<IncidentJob> = {}): IncidentJob {
  return {
    jobId,
    kind: "mail",
    decision: "retry",
    counters: counted({ crashes: 1 }),
    limit: 3,
    fence: 1,
    lastStep: null,
    alone: false,
    success: true,
    error: null,
    resumedAt: null,
    ...given,
  };
}

function anIncident(given: Partial<Incident> = {}): Incident {
  const jobs = given.jobs ?? [];
  return {
    id: "incident-1",
    recovery: "recovery-1",
    worker: "worker-001",
    how: "gone",
    resolution: null,
    detectedAt: STARTED - 10,
    completedAt: STARTED + 1_200,
    jobCount: jobs.length,
    host: "here",
    pid: 42,
    version: "0.1.0",
    workerStartedAt: STARTED - 3_900_000,
    lastHeartbeatAt: STARTED - 300_000,
    lastSeenAliveAt: null,
    loopLagMs: 3,
    evidence: null,
    startedAt: STARTED,
    by: "open",
    integrity: "PASSED",
    summary: FLUSHED,
    heldAtDeath: jobs.length,
    ...given,
    jobs,
  };
}

const text = (incidents: readonly Incident[], most?: number): string =>
  reportText(recoveryReport(incidents)!, ...(most === undefined ? [] : [most]));

test("FR-025 FR-026 FR-028 NFR-010 AC-012 the text is the one that operators of the first queue knew", () => {
  const incident = anIncident({
    jobs: [
      aJob("abc123", { counters: counted({ crashes: 2, blamed: 1 }) }),
      aJob("def456", { counters: counted({ crashes: 3, blamed: 2 }) }),
      aJob("ghi789", { decision: "quarantine", counters: counted({ crashes: 4, blamed: 3 }) }),
    ],
  });
  assert.equal(
    text([incident]),
    `=== Queue Recovery Report ===
Started: 2024-01-15T10:30:00Z
Duration: 1.2s

Integrity Check: PASSED
WAL Checkpointed: 145 frames

Orphaned Jobs Found: 3
  - abc123: retry (attempt 2/3)
  - def456: retry (attempt 3/3)
  - ghi789: quarantined (max attempts exceeded)

Dead Workers: 1
  - worker-001 (last heartbeat: 5m ago)

Recovery Complete: 2024-01-15T10:30:01Z
`,
  );
});

test("FR-022 FR-026 FR-027 every decision has its own words", () => {
  const lines = text([
    anIncident({
      jobs: [
        aJob("a", { decision: "requeue" }),
        aJob("b", { decision: "cancel" }),
        aJob("c", { decision: "fail" }),
        aJob("d", { decision: "none", success: false, error: "its kind is not known" }),
        aJob("e", { decision: "none", success: false }),
      ],
    }),
  ]).split("\n");
  assert.deepEqual(
    lines.filter((line) => /^ {2}- \w: /.test(line)),
    [
      "  - a: requeue (not counted)",
      "  - b: cancelled (as requested)",
      '  - c: failed (onCrash is "fail")',
      "  - d: not recovered (its kind is not known)",
      "  - e: not recovered (unknown error)",
    ],
  );
});

test("requests that were in flight are counted by kind, in the words of what became of each", () => {
  const report = text([
    anIncident({
      jobs: [
        aJob("a", { kind: "pay", decision: "unsent" }),
        aJob("b", { kind: "pay", decision: "unsent" }),
        aJob("c", { kind: "pay", decision: "ask" }),
        aJob("d", { kind: "hook", decision: "resend" }),
        aJob("e", { kind: "hook", decision: "unknown" }),
        aJob("f", { kind: "hook", decision: "none", success: false, error: "refused" }),
      ],
    }),
  ]);
  assert.match(
    report,
    /\nRequests In Flight: 5\n {2}- pay: 2 had not been sent, 1 of unknown outcome: asked\n {2}- hook: 1 sent again, 1 of unknown outcome: failed\n/,
  );
});

test("an unfinished recovery says so, also if only one of its incidents is unfinished", () => {
  const unfinished = text([anIncident(), anIncident({ id: "incident-2", completedAt: null })]);
  assert.match(unfinished, /\nDuration: unfinished\n/);
  assert.match(unfinished, /\nRecovery Not Complete\n$/);
});

test("what was not checked says so in words", () => {
  assert.match(text([anIncident({ integrity: "NOT_CHECKED" })]), /\nIntegrity Check: NOT CHECKED\n/);
  const later = text([anIncident({ integrity: "NOT_CHECKED", by: "recover" })]);
  assert.doesNotMatch(later, /Integrity|WAL/, "a recovery that is not one of a start checks nothing");
  assert.match(later, /\nDuration: \S+\n\nOrphaned Jobs Found/);
  assert.match(
    text([anIncident({ integrity: "PASSED (quick)", by: "recover" })]),
    /\nIntegrity Check: PASSED \(quick\)\nWAL/,
  );
});

test("a long list is cut and the rest counted", () => {
  const jobs = Array.from({ length: 7 }, (_, n) => aJob(`job-${n}`));
  const cut = text([anIncident({ jobs })], 5);
  assert.match(cut, /Orphaned Jobs Found: 7\n/);
  assert.match(cut, / {2}- job-4: .*\n {2}\.\.\. and 2 more\n\nDead/);
  assert.doesNotMatch(cut, /job-5/);
  assert.doesNotMatch(text([anIncident({ jobs })], 7), /more/);
});

test("fifty jobs are listed unless another number is asked for", () => {
  const jobs = Array.from({ length: 51 }, (_, n) => aJob(`job-${n}`));
  assert.match(text([anIncident({ jobs })]), /\.\.\. and 1 more/);
});

test("a heartbeat that is ahead of the recovery's clock was 0 ms ago", () => {
  assert.match(text([anIncident({ lastHeartbeatAt: STARTED + 5_000 })]), /\(last heartbeat: 0ms ago\)/);
});

test("without incidents the report is null", () => {
  assert.equal(recoveryReport([]), null);
});

test("FR-023 FR-024 FR-025 AC-012 one incident's report has every field that programs read", () => {
  const incident = anIncident({
    evidence: "exit code 137",
    lastSeenAliveAt: STARTED - 260,
    jobs: [
      aJob("abc123", { lastStep: "render", resumedAt: STARTED + 2_000, counters: counted({ crashes: 2 }) }),
      aJob("def456", { decision: "requeue", resumedAt: STARTED + 3_000 }),
      aJob("ghi789", { decision: "quarantine", counters: counted({ crashes: 4, blamed: 3 }) }),
    ],
  });
  assert.deepEqual(recoveryReport([incident]), {
    id: "incident-1",
    startedAt: STARTED,
    completedAt: STARTED + 1_200,
    durationMs: 1_200,
    integrity: "PASSED",
    integrityDepth: null,
    walFramesCheckpointed: 145,
    remarks: ["WAL Checkpointed: 145 frames"],
    store: null,
    by: "open",
    incidents: ["incident-1"],
    recoveredJobs: [
      {
        jobId: "abc123",
        kind: "mail",
        decision: "retry",
        crashes: 2,
        maxCrashes: 3,
        success: true,
        error: null,
        lastStep: "render",
        resumedAt: STARTED + 2_000,
      },
      {
        jobId: "def456",
        kind: "mail",
        decision: "requeue",
        crashes: 1,
        maxCrashes: 3,
        success: true,
        error: null,
        lastStep: null,
        resumedAt: STARTED + 3_000,
      },
      {
        jobId: "ghi789",
        kind: "mail",
        decision: "quarantine",
        crashes: 4,
        maxCrashes: 3,
        success: true,
        error: null,
        lastStep: null,
        resumedAt: null,
      },
    ],
    deadWorkers: [
      {
        workerId: "worker-001",
        how: "gone",
        resolution: null,
        evidence: "exit code 137",
        host: "here",
        pid: 42,
        version: "0.1.0",
        uptimeMs: 3_600_000,
        lastHeartbeatAt: STARTED - 300_000,
        lastSeenAliveAt: STARTED - 260,
        detectedAt: STARTED - 10,
        recoveredAt: STARTED + 1_200,
        runningAgainAt: STARTED + 3_000,
        loopLagMs: 3,
        jobIds: ["abc123", "def456", "ghi789"],
      },
    ],
    failedRecoveries: [],
  });
});

test("a report survives JSON unchanged", () => {
  const report = recoveryReport([anIncident({ jobs: [aJob("abc123")] })]);
  assert.deepEqual(JSON.parse(JSON.stringify(report)), report);
});

test("the work is running again when the last job that goes on is, and not before", () => {
  const again = (jobs: IncidentJob[]): number | null =>
    recoveryReport([anIncident({ jobs })])!.deadWorkers[0]!.runningAgainAt;
  assert.equal(again([]), null);
  assert.equal(again([aJob("a", { resumedAt: STARTED }), aJob("b")]), null);
  assert.equal(again([aJob("a", { resumedAt: STARTED }), aJob("b", { decision: "fail" })]), STARTED);
});

test("the report of several deaths has the pass's id, its first start, its last end and everybody in it", () => {
  const report = recoveryReport([
    anIncident({ jobs: [aJob("a")] }),
    anIncident({
      id: "incident-2",
      worker: "worker-002",
      startedAt: STARTED - 100,
      completedAt: STARTED + 5_000,
      jobs: [aJob("b"), aJob("c")],
    }),
  ])!;
  assert.equal(report.id, "recovery-1");
  assert.equal(report.startedAt, STARTED - 100);
  assert.equal(report.durationMs, 5_100);
  assert.deepEqual(report.incidents, ["incident-1", "incident-2"]);
  assert.deepEqual(
    report.recoveredJobs.map(({ jobId }) => jobId),
    ["a", "b", "c"],
  );
  assert.deepEqual(
    report.deadWorkers.map(({ workerId }) => workerId),
    ["worker-001", "worker-002"],
  );
});

test("a retry in the report is never beyond its limit", () => {
  const incident = anIncident({ jobs: [aJob("a", { counters: counted({ crashes: 4, blamed: 2 }) })] });
  assert.doesNotMatch(text([incident]), /attempt 4\/3/);
});

const SALVAGED: Opening = {
  recovery: "recovery-1",
  startedAt: STARTED,
  completedAt: STARTED + 1_500,
  findings: {
    integrity: "REPAIRED",
    summary: FLUSHED,
    check: {
      verdict: "FAILED",
      depth: "full",
      findings: ["Tree 7 page 9: btreeInitPage() returns error code 11"],
      tookMs: 3,
    },
    repair: {
      steps: [
        { step: "reindex", ok: false, detail: "the table itself is damaged" },
        { step: "salvage", ok: true, detail: "41 of 42 rows" },
      ],
      sound: true,
      findings: [],
      salvage: {
        keptAs: "/data/jobs.db.damaged",
        recoveryPointAt: Date.parse("2024-01-15T10:29:58Z"),
        tables: [
          { table: "outlive_jobs", rows: 41, lost: 1 },
          { table: "outlive_kinds", rows: 2, lost: 0 },
          { table: "outlive_logs", rows: 7, lost: null },
        ],
        partial: ["job-p"],
        lost: ["job-l"],
      },
    },
    inconsistencies: [{ what: "orphan-steps", detail: "2 steps belong to no job.", names: ["job-l"], count: 2 }],
    notice: RESTORED,
  },
};

test("FR-006 FR-056 the depth of the integrity check is in the report, and an incident of an earlier version has none", () => {
  for (const [stored, integrity, depth, line] of [
    ["PASSED (quick)", "PASSED", "quick", "PASSED (quick)"],
    ["REPAIRED (full)", "REPAIRED", "full", "REPAIRED (full)"],
    ["NOT_CHECKED", "NOT_CHECKED", null, "NOT CHECKED"],
  ] as const) {
    const report = recoveryReport([anIncident({ integrity: stored })])!;
    assert.deepEqual([report.integrity, report.integrityDepth], [integrity, depth]);
    assert.ok(reportText(report).includes(`\nIntegrity Check: ${line}\n`));
  }
});

test("FR-027 recoveries that failed are listed after the dead workers; a pass in which all failed has a report, too", () => {
  const failed = [{ worker: "w-9", error: "disk is full" }];
  const lines = "\nFailed Recoveries: 1\n  - w-9: disk is full; the next recovery tries again\n";
  assert.ok(reportText(withFailures(recoveryReport([anIncident()])!, failed)).includes(lines));
  const pass = { recovery: "r-1", startedAt: 1_000, completedAt: 3_000, incidents: [], jobs: [], locked: [], failed };
  const report = failedReport(pass, "recover");
  assert.deepEqual(
    [report.id, report.by, report.durationMs, report.store, report.failedRecoveries],
    ["r-1", "recover", 2_000, null, [{ workerId: "w-9", error: "disk is full" }]],
  );
  assert.ok(reportText(report).includes(lines));
});

test("FR-067 FR-068 FR-069 FR-070 what an open found about the store is in the report: damage, repair, recovery point, what is lost and partial, and the advice", () => {
  const report = recoveryReport([], SALVAGED)!;
  assert.deepEqual([report.id, report.durationMs, report.incidents], ["recovery-1", 1_500, []]);
  assert.equal(report.store?.recoveryPointAt, STARTED - 2_000);
  assert.match(
    reportText(report),
    new RegExp(
      [
        "Integrity Check: REPAIRED (full)",
        "WAL Checkpointed: 145 frames",
        "Journal Mode: restored to WAL (it was delete)",
        "Damage Found: 1",
        "  - Tree 7 page 9: btreeInitPage() returns error code 11",
        "Repair: 2",
        "  - reindex: not enough (the table itself is damaged)",
        "  - salvage: ok (41 of 42 rows)",
        "Damaged File Kept As: /data/jobs.db.damaged",
        "Recovery Point: 2024-01-15T10:29:58Z",
        "Rows Lost: 2",
        "  - outlive_jobs: 1 (41 saved)",
        "  - outlive_logs: unknown (7 saved)",
        "Lost Jobs: 1",
        "  - job-l",
        "Partial Jobs: 1",
        "  - job-p",
        "Inconsistencies: 1",
        "  - 2 steps belong to no job. (job-l)",
        "Recommended: make a backup now (outlive backup FILE), and find out what damaged the file",
        "",
        "Orphaned Jobs Found: 0",
      ]
        .map((line) => RegExp.escape(line))
        .join("\n"),
    ),
  );
});

test("deaths that the same open found share its report; earlier and single ones have their own", () => {
  const same = recoveryReport([anIncident({ integrity: "UNFINISHED" })], SALVAGED)!;
  assert.deepEqual([same.integrity, same.incidents.length, same.store?.remarks], ["REPAIRED", 1, RESTORED.lines]);
  const earlier = anIncident({ recovery: "recovery-0", startedAt: STARTED - 1 });
  assert.equal(recoveryReport([earlier], SALVAGED)?.id, "recovery-1", "the open was later");
  assert.equal(recoveryReport([earlier], SALVAGED, true)?.id, "incident-1", "one incident was asked for");
  const later = anIncident({ recovery: "recovery-2", startedAt: STARTED + 1 });
  assert.deepEqual(
    [recoveryReport([later], SALVAGED)?.id, recoveryReport([later], SALVAGED)?.store],
    ["incident-1", null],
  );
});

test("an open that found nothing is not worth a report", () => {
  for (const integrity of ["PASSED", "NOT_CHECKED"] as const)
    assert.equal(
      isNoteworthy({ integrity, summary: FLUSHED, inconsistencies: [], notice: { lines: [], facts: {} } }),
      false,
    );
  for (const integrity of ["REPAIRED", "FAILED", "UNFINISHED"] as const)
    assert.equal(isNoteworthy({ integrity }), true);
  assert.equal(isNoteworthy({ integrity: "PASSED", notice: RESTORED }), true);
});
