// What people and reports read.
import type { AuditRecord } from "../../job/audit.ts";
import { type JobDetails, JOB_STATES, type KindSettings } from "../../job/job.ts";
import { type KeyState, throttleSettings } from "../../job/limits.ts";
import { counted, humanBytes } from "../../job/text.ts";
import { shownWait } from "../../job/waits.ts";
import type { Incident, IncidentSummary } from "../../recovery/incident.ts";
import type { Inspecting, JobFilter, KindCounts, ListPage, RecoveredJob, StoreHealth } from "../port.ts";
import { cursorAt, rowOfCursor, STATE, storedError, storedValue } from "../rows.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { fieldsOf, historyEntry, inputOwner, jobInfo, keptSteps, shownJob, splitInto, unchecked } from "./encoding.ts";
import { serverFacts } from "./upkeep.ts";

/** A page of a list is found in at most this many calls, of 3,072 rows each. */
const MAX_CALLS = 33;
const KEYS_AT_ONCE = 500;

/** What one script reads: a process may wait for the results of thousands of jobs. */
const OUTCOMES_AT_ONCE = 250;

export function inspecting(connection: Connection): Inspecting {
  return {
    get: (id) => getJob(connection, id),
    async outcomes(ids) {
      const list: [number, string, string][] = [];
      for (let from = 0; from < ids.length; from += OUTCOMES_AT_ONCE) {
        const piece = ids.slice(from, from + OUTCOMES_AT_ONCE);
        list.push(...((await connection.eval("outcomes", [String(piece.length), ...piece])) as unknown as typeof list));
      }
      return ids.map((id, at) => {
        const [state, result, error] = list[at]!;
        if (state === undefined) return { id, state: "missing", result: null, error: null };
        const text = result === "" ? null : unchecked(result, id).text;
        return { id, state: JOB_STATES[state]!, result: text, error: error === "" ? null : storedError(error) };
      });
    },
    list: (filter, limit, after) => listJobs(connection, filter, limit, after),
    async counts() {
      const list: [string, ...(number | string | string[])[]][] = [];
      for (let from = "1"; from !== "";) {
        const [some, next] = (await connection.eval("counts", [from])) as unknown as [typeof list, string];
        list.push(...some);
        from = next;
      }
      return list.map(kindCounts).toSorted((a, b) => (a.kind < b.kind ? -1 : 1));
    },
    async isLimited(kind) {
      const settings = (await connection.eval("kindSettings", [kind])) as string;
      if (settings === "") return false;
      const { keyed = [], fair = false } = JSON.parse(settings) as KindSettings;
      return keyed.length > 0 || fair;
    },
    async ahead(id) {
      let count = 0;
      for (let from: number | "" = 0; from !== "";) {
        const [some, next] = (await connection.eval("ahead", [id, String(from)])) as [number?, (number | "")?];
        if (some === undefined || next === undefined) return null;
        count += some;
        from = next;
      }
      return count;
    },
    async keys(query) {
      const list: KeyState[] = [];
      const read = async (args: readonly string[]): Promise<string> => {
        const [states, next, now] = (await connection.eval("keyStates", args)) as unknown as [
          KeyReply[],
          string,
          string,
        ];
        list.push(...states.map((state) => keyState(state, Number(now))));
        return next;
      };
      if ("key" in query) {
        await read(["1", String(query.key.id), query.key.limit, query.key.key]);
        return list;
      }
      const { limit, most } = query;
      for (let after = ""; list.length < most;) {
        after = await read(["", limit ?? "", after, String(Math.min(KEYS_AT_ONCE, most - list.length))]);
        if (after === "") break;
      }
      return list;
    },
    async audit({ actor, action, target, limit, after }) {
      const list: string[] = [];
      for (let from: string | null = after ?? ""; from !== null && list.length < limit;) {
        const args: string[] = [actor ?? "", action ?? "", target ?? "", String(limit - list.length), from];
        const [some, next] = (await connection.eval("audit", args)) as unknown as [string[], string];
        list.push(...some);
        from = next || null;
      }
      return list.map((text) => {
        const entry = JSON.parse(text) as AuditRecord;
        return { ...entry, reason: entry.reason === "" ? null : entry.reason };
      });
    },
    async suspects() {
      const list: [string, number, number][] = [];
      for (let after: string | null = ""; after !== null;) {
        const [some, next] = (await connection.eval("suspects", [after])) as unknown as [typeof list, string];
        list.push(...some);
        after = next || null;
      }
      return list.map(([worker, count, together]) => ({ worker, count, together }));
    },
    writer: async () => null,
    async incidents(limit, after) {
      const list = (await connection.eval("incidents", [String(limit), after ?? ""])) as unknown as IncidentReply[];
      return list.map((reply): IncidentSummary => {
        const { id, recovery, worker, how, resolution, detectedAt, completedAt, jobCount } = incidentOf(reply, []);
        return { id, recovery, worker, how, resolution, detectedAt, completedAt, jobCount };
      });
    },
    async incident(id) {
      const reply = (await connection.eval("incident", [id])) as readonly Reply[];
      if (reply.length === 0) return null;
      return incidentOf(reply as unknown as IncidentReply, await incidentJobs(connection, id));
    },
    async latestRecovery() {
      const found = (await connection.eval("latestRecovery")) as unknown as IncidentReply[];
      const incidents: Incident[] = [];
      for (const reply of found) incidents.push(incidentOf(reply, await incidentJobs(connection, reply[0])));
      return incidents;
    },
    async health() {
      const detail = await serverFacts(connection);
      return { ok: true, summary: serverSummary(detail), detail };
    },
  };
}

/** What `appendfsync` promises, in a few words. */
const FLUSHED: Readonly<Record<string, string>> = {
  always: "every write flushed",
  everysec: "flushed every second",
  no: "flushed by the system",
};

/** Its line in `outlive status`. A user that may not ask the server knows less of it. */
export function serverSummary(facts: StoreHealth["detail"]): StoreHealth["summary"] {
  const {
    valkey_version: valkey,
    redis_version: version = "",
    aof_enabled: aof,
    used_memory: memory,
    appendfsync: flushed,
  } = facts;
  return [
    (valkey === undefined ? `Redis ${version}` : `Valkey ${valkey}`).trim(),
    ...(aof === undefined
      ? []
      : [Number(aof) === 1 ? (FLUSHED[String(flushed)] ?? "append-only file") : "no append-only file"]),
    ...(memory === undefined ? [] : [humanBytes(Number(memory))]),
    counted(Number(facts["operations"]), "operation"),
  ];
}

async function getJob(connection: Connection, id: string): Promise<JobDetails | null> {
  const reply = (await connection.eval("getJob", [id])) as unknown as [
    Reply,
    string,
    string,
    string[],
    string[],
    string[],
    string,
  ];
  const [shown, storedInput, storedResult, flat, history, log, now] = reply;
  if (shown === undefined) return null;
  const job = shownJob(shown);
  const input = unchecked(storedInput, inputOwner(job.kind));
  const result = storedResult === "" ? { text: null, intact: true } : unchecked(storedResult, id);
  const steps = keptSteps(id, flat);
  return {
    ...jobInfo(job, Number(now)),
    ...(job.d["tr"] !== undefined && { trace: job.d["tr"] }),
    input: storedValue(input.text),
    result: storedValue(result.text),
    progress: storedValue(job.d["pg"] ?? null),
    steps: steps.map(({ name, result: value, at, attempt }) => ({
      name: shownWait(name),
      result: storedValue(value),
      at,
      attempt,
    })),
    history: history.map(historyEntry),
    log: log.map((line) => {
      const [at, attempt, message] = splitInto(line, 3);
      return { at: Number(at), attempt: Number(attempt), message: message! };
    }),
    corrupt: [
      ...(input.intact ? [] : ["input"]),
      ...(result.intact ? [] : ["result"]),
      ...steps.filter(({ intact }) => !intact).map(({ name }) => `step ${shownWait(name)}`),
    ],
  };
}

async function listJobs(
  connection: Connection,
  filter: JobFilter,
  limit: number,
  after: string | null,
): Promise<ListPage> {
  const { state, kind, parent, text, createdBefore, createdAfter } = filter;
  let before = after === null ? Number.MAX_SAFE_INTEGER : rowOfCursor(after);
  const jobs: ListPage["jobs"][number][] = [];
  const given = (value: string | number | undefined): string => (value === undefined ? "" : String(value));
  for (let calls = 0; calls < MAX_CALLS; calls++) {
    const [list, stopped, now] = (await connection.eval("list", [
      String(before),
      String(limit - jobs.length),
      state === undefined ? "" : String(STATE[state]),
      given(kind),
      given(parent),
      given(text),
      given(createdBefore),
      given(createdAfter),
    ])) as unknown as [Reply[], string, string];
    jobs.push(...list.map((one) => jobInfo(shownJob(one), Number(now))));
    if (stopped === "") return { jobs, next: null };
    before = Number(stopped);
    if (jobs.length === limit) break;
  }
  return { jobs, next: cursorAt(before) };
}

function kindCounts(row: readonly (string | number | readonly string[])[]): KindCounts {
  const [at, until, by, reason] = row[11] as readonly string[];
  const [kind, paused, ready, oldest, delayed, held, running, succeeded, dead, cancelled, quarantined] = row;
  return {
    kind: String(kind),
    paused: paused === 1,
    ...(at !== "" && {
      pause: {
        by: by!,
        reason: reason === "" ? null : reason!,
        at: Number(at),
        until: until === "" ? null : Number(until),
      },
    }),
    ready: Number(ready),
    oldestReadyMs: oldest === "" ? null : Number(oldest),
    delayed: Number(delayed),
    held: Number(held),
    running: Number(running),
    succeeded: Number(succeeded),
    dead: Number(dead),
    cancelled: Number(cancelled),
    quarantined: Number(quarantined),
  };
}

type KeyReply = readonly [limit: string, key: string, declared: string, own: string[], taken: number, held: number];

function keyState([limit, key, stored, own, taken, held]: KeyReply, now: number): KeyState {
  const number = (text: string | undefined): number | null => (text === undefined || text === "" ? null : Number(text));
  const [running, intervalMs, burst, weight, heldOff, pausedAt, pausedUntil] = own.map(number);
  const [byLimit, everyMs, bursts, strict] = stored === "" ? [] : stored.split("|");
  const throttle = throttleSettings(limit);
  const until = pausedUntil ?? null;
  const isPaused = pausedAt !== null && (until === null || until > now);
  return {
    limit,
    key,
    applies: {
      running: running ?? number(byLimit),
      intervalMs: intervalMs ?? number(everyMs) ?? throttle?.intervalMs ?? null,
      burst: burst ?? number(bursts) ?? 1,
      strict: strict === "1",
    },
    own: {
      ...(running !== null && { running }),
      ...(intervalMs !== null && { intervalMs }),
      ...(burst !== null && { burst }),
      ...(weight !== null && { weight }),
    },
    taken,
    held,
    paused: isPaused ? { reason: own[7]!, at: pausedAt!, until } : null,
    heldOffUntil: (heldOff ?? 0) > now ? heldOff! : null,
  };
}

type IncidentReply = readonly [
  id: string,
  record: string,
  recovery: string,
  worker: string,
  how: string,
  resolution: string,
  completed: string,
  evidence: string,
  held: string,
  count: number,
];
type StaticIncident = Omit<
  Incident,
  "id" | "recovery" | "worker" | "how" | "resolution" | "completedAt" | "evidence" | "heldAtDeath" | "jobs" | "jobCount"
>;

/** What an incident keeps of its jobs, by their rows. Not by a script: what thousands of them say would be copied twice. */
export async function incidentJobs(connection: Connection, id: string): Promise<string[]> {
  const reply = await connection.command("HGETALL", `${connection.tag}incj:${id}`);
  // RESP3 returns a map, RESP2 a flat list.
  return Array.isArray(reply) ? (reply as string[]) : Object.entries(reply as object).flat();
}

function incidentOf(reply: IncidentReply, flat: readonly string[]): Incident {
  const [id, record, recovery, worker, how, resolution, completed, evidence, held, jobCount] = reply;
  const listed = fieldsOf(flat);
  const jobs = Object.entries(listed)
    .filter(([field]) => !field.includes(":"))
    .toSorted(([a], [b]) => Number(a) - Number(b))
    .map(([row, text]) => {
      const resumed = listed[`${row}:resumed`];
      return { ...(JSON.parse(text) as RecoveredJob), resumedAt: resumed === undefined ? null : Number(resumed) };
    });
  return {
    ...(JSON.parse(record) as StaticIncident),
    id,
    recovery,
    worker,
    how: how as Incident["how"],
    resolution: (resolution || null) as Incident["resolution"],
    completedAt: completed === "" ? null : Number(completed),
    evidence: evidence || null,
    heldAtDeath: Number(held),
    jobCount,
    jobs,
  };
}
