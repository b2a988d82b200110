// From what was typed to what is in the store: ids and how they begin, and the errors for a job, incident or kind that does not exist.
import type { Engine } from "../engine/engine.ts";
import type { BatchInfo } from "../index.ts";
import { batchOfBlockId } from "../job/batches.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { JobInfo } from "../job/job.ts";
import { nearest } from "../job/text.ts";
import type { Death, WorkerRow } from "../stores/liveness.ts";
import type { JobFilter, ListPage } from "../stores/port.ts";

export function noSuchJob(id: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no job ${id}.`,
    "Search for it: outlive jobs --text PART. Finished jobs are deleted after their retention.",
    { jobId: id },
  );
}

/** The batch whose block this job is; null: it is not a block. */
export async function batchOfJob(engine: Engine, id: string, kind: string): Promise<BatchInfo | null> {
  const place = batchOfBlockId(id);
  if (place === null) return null;
  // A store without batches has no blocks.
  const batch = await engine.batch(place.batch).catch(() => null);
  return batch?.kind === kind ? batch : null;
}

export function noSuchIncident(id: string): OutliveError {
  return new OutliveError(ErrorCode.notFound, `There is no incident ${id}.`, "List them: outlive incidents", {
    incident: id,
  });
}

/** Fewer characters of an id do not count as a prefix: ids begin with the time, so every job of one day begins alike. */
export const MIN_PREFIX = 6;
const SHOWN = 5;

export function severalBegin(what: "job" | "incident", prefix: string, ids: readonly string[]): OutliveError {
  const shown = `${ids.slice(0, SHOWN).join(", ")}${ids.length > SHOWN ? ", ..." : ""}`;
  return new OutliveError(
    ErrorCode.notFound,
    `Several ${what}s begin with ${prefix}: ${shown}.`,
    "Use more characters of the id.",
    { prefix, ids: ids.slice(0, SHOWN) },
  );
}

/** The whole id of a job: the given one, or the only one that begins with it. Found within 200 ms or not at all. */
export async function wholeId(engine: Engine, given: string): Promise<string> {
  if ((await engine.get(given)) !== null || given.length < MIN_PREFIX) return given;
  const { jobs } = await pageOfJobs(engine, { text: given }, 20, null);
  const ids = jobs.map(({ id }) => id).filter((id) => id.startsWith(given));
  // The id of a batch begins the ids of its blocks.
  if (ids.some((id) => batchOfBlockId(id)?.batch === given)) return given;
  if (ids.length > 1) throw severalBegin("job", given, ids);
  return ids[0] ?? given;
}

export function noSuchKind(kind: string, kinds: readonly string[]): OutliveError {
  const near = nearest(kind, kinds);
  const hint = near === null ? `There are: ${kinds.join(", ") || "none yet"}.` : `Did you mean ${near}?`;
  return new OutliveError(ErrorCode.notFound, `No kind ${JSON.stringify(kind)} is in the store.`, hint, {
    kind,
    kinds,
  });
}

// Pages of jobs as the commands use them: the store limits how many rows each query scans, so a page is assembled from
// several.

/** A list responds within 300 ms: what it has not scanned by then is left to the next page. */
const LOOKUP_MS = 200;

/** Up to `limit` jobs. Fewer, with `next` set, if scanning all of them would have taken too long. */
export async function pageOfJobs(
  engine: Engine,
  filter: JobFilter,
  limit: number,
  after: string | null,
): Promise<ListPage> {
  const startedAt = performance.now();
  const jobs: JobInfo[] = [];
  let next = after;
  do {
    const page = await engine.list({ ...filter, limit: limit - jobs.length, ...(next !== null && { after: next }) });
    jobs.push(...page.jobs);
    next = page.next;
  } while (next !== null && jobs.length < limit && performance.now() - startedAt < LOOKUP_MS);
  return { jobs, next };
}

/** All pages, newest first. Jobs enqueued meanwhile are not included; those that change state meanwhile may be. */
export async function* allPages(engine: Engine, filter: JobFilter, limit = 1_000): AsyncGenerator<readonly JobInfo[]> {
  let next: string | null = null;
  do {
    const page: ListPage = await engine.list({ ...filter, limit, ...(next !== null && { after: next }) });
    yield page.jobs;
    next = page.next;
  } while (next !== null);
}

/** For empty lists: a kind that was never declared is probably a typo. */
export async function assertKindIsThere(engine: Engine, kind: string | undefined): Promise<void> {
  if (kind === undefined) return;
  const kinds = (await engine.counts()).map((counts) => counts.kind);
  if (!kinds.includes(kind)) throw noSuchKind(kind, kinds);
}

// What is known about a worker, as people and programs see it: its row, the ages of its signs of life, and whether its
// lock or its silence shows that it is dead.

/**
 * The terms of the glossary: live, blocked, silent, gone, contact lost; `recovering` and `stopped` come from its row.
 */
export type Known = "live" | "blocked" | "silent" | "gone" | "lost" | "recovering" | "stopped";

export interface KnownWorker {
  readonly id: string;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly known: Known;
  readonly kinds: readonly string[];
  readonly concurrency: number;
  readonly heldCount: number;
  readonly startedAt: number;
  readonly heartbeatAt: number;
  readonly heartbeatAgeMs: number;
  readonly beats: number;
  readonly leaseMs: number;
  readonly loopLagMs: number;
  readonly lastWord: string | null;
  /** Only if requested. */
  readonly heldIds?: readonly string[];
}

export type Deaths = readonly { readonly worker: WorkerRow; readonly death: Death }[];

/** An event loop that does not turn for longer is blocked; a shorter pause is ordinary work. */
const BLOCKED_MS = 1_000;

export function knownWorker(worker: WorkerRow, deaths: Deaths, now: number): KnownWorker {
  const heartbeatAgeMs = Math.max(0, now - worker.heartbeatAt);
  const { id, host, pid, version, kinds, concurrency, heldCount, startedAt, heartbeatAt, beats, leaseMs } = worker;
  const known = whatIsKnown(worker, deaths, heartbeatAgeMs);
  const { loopLagMs, lastWord, heldIds } = worker;
  return {
    id,
    host,
    pid,
    version,
    known,
    kinds,
    concurrency,
    heldCount,
    startedAt,
    heartbeatAt,
    heartbeatAgeMs,
    beats,
    leaseMs,
    loopLagMs,
    lastWord,
    ...(heldIds && { heldIds }),
  };
}

/** Claims jobs, or will again: every worker that is not dead, silent or stopping. */
export function works({ known }: KnownWorker): boolean {
  return known === "live" || known === "blocked";
}

function whatIsKnown(worker: WorkerRow, deaths: Deaths, heartbeatAgeMs: number): Known {
  const death = deaths.find((one) => one.worker.id === worker.id)?.death;
  if (worker.state !== "live") return worker.state;
  if (death) return death.how;
  if (heartbeatAgeMs > worker.leaseMs) return "silent";
  return worker.loopLagMs > BLOCKED_MS ? "blocked" : "live";
}
