// The forms of what `--json` prints, held by the tests. Scripts of users rely on them: a field may be added, none may go.

export const JOB = {
  id: "string",
  kind: "string",
  state: "string",
  priority: "number",
  dedupeKey: "null",
  createdAt: "string",
  runAt: "null",
  startedAt: "null",
  deadlineAt: "null",
  finishedAt: "null",
  worker: "null",
  epoch: "number",
  attempt: "number",
  counters: {
    errors: "number",
    crashes: "number",
    blamed: "number",
    timeouts: "number",
    interruptions: "number",
    losses: "number",
  },
  lastOutcome: "null",
  error: "null",
  cancelRequested: "boolean",
  together: "number",
  parent: "null",
  waitsAt: "null",
  keys: [],
  heldBy: "null",
  waitsForResolution: "boolean",
};

export const INIT = { written: ["string"], kept: [], next: ["string"] };

export const CHECK = {
  ok: "boolean",
  file: "string",
  values: [{ key: "string", value: "string", source: "string" }],
  findings: [{ level: "string", text: "string" }],
};

export const COMPLETION = { shell: "string", script: "string" };

/** Of a call that can't be understood. */
export const USAGE = { error: { code: "string", message: "string", hint: "string" } };

export const KIND = {
  kind: "string",
  failing: "null",
  paused: "boolean",
  ready: "number",
  oldestReadyMs: "number",
  delayed: "number",
  held: "number",
  running: "number",
  succeeded: "number",
  dead: "number",
  cancelled: "number",
  quarantined: "number",
  liveWorkers: "number",
  perSecond: "null",
};

export const WORKER = {
  id: "string",
  host: "string",
  pid: "number",
  version: "string",
  known: "string",
  kinds: ["string"],
  concurrency: "number",
  heldCount: "number",
  startedAt: "string",
  heartbeatAt: "string",
  heartbeatAgeMs: "number",
  beats: "number",
  leaseMs: "number",
  loopLagMs: "number",
  lastWord: "null",
};

export const INCIDENT = {
  id: "string",
  recovery: "string",
  worker: "string",
  how: "string",
  resolution: "null",
  detectedAt: "string",
  completedAt: "string",
  jobCount: "number",
};

export const REPORT = {
  id: "string",
  startedAt: "string",
  completedAt: "string",
  durationMs: "number",
  integrity: "string",
  integrityDepth: "null",
  walFramesCheckpointed: "number",
  remarks: ["string"],
  store: "null",
  by: "string",
  incidents: ["string"],
  recoveredJobs: [
    {
      jobId: "string",
      kind: "string",
      decision: "string",
      crashes: "number",
      maxCrashes: "number",
      success: "boolean",
      error: "null",
      lastStep: "null",
      resumedAt: "null",
    },
  ],
  deadWorkers: [
    {
      workerId: "string",
      how: "string",
      resolution: "null",
      evidence: "string",
      host: "string",
      pid: "number",
      version: "string",
      uptimeMs: "number",
      lastHeartbeatAt: "string",
      lastSeenAliveAt: "null",
      detectedAt: "string",
      recoveredAt: "string",
      runningAgainAt: "null",
      loopLagMs: "number",
      jobIds: ["string"],
    },
  ],
  failedRecoveries: [],
};
