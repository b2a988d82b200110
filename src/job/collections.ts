// Collections: numbered messages that are kept as blobs until the set is complete. A collection has no owner and no timer: its state is a row,
// a part is a row under (collection, series, ordinal), and every change of state is a job or an accepted part. A collection is complete
// when every series is announced and has each ordinal from 1 to its number. The decisions are here. Pure.
import { ErrorCode, OutliveError } from "./errors.ts";
import type { JobDraft } from "./job.ts";

export const COLLECTION_STATES = ["requested", "collecting", "complete", "notified", "abandoned", "cancelled"] as const;
/**
 * requested: its producer is being asked. collecting: parts may come. complete: all have come, and what follows runs. notified: the notification, if
 * the kind has one, was confirmed. abandoned and cancelled: it ended without all of its parts.
 */
export type CollectionState = (typeof COLLECTION_STATES)[number];

/** Whether parts may still come. */
export function isOpen(state: CollectionState): boolean {
  return state === "requested" || state === "collecting";
}

/** The highest ordinal. */
export const MAX_ORDINAL = 1_000_000_000;

/** A collection on its way into the store. */
export interface CollectionDraft {
  readonly id: string;
  readonly kind: string;
  /** JSON text. */
  readonly input: string;
  /** Every series of the kind with the number of its parts; null: not announced yet. */
  readonly series: readonly { readonly name: string; readonly expected: number | null }[];
  /** After this long without a new part it is abandoned. */
  readonly idleMs: number;
  /** After this long it is abandoned, whatever comes. */
  readonly totalMs: number;
  /** How long its parts are kept when it has ended. */
  readonly keepMs: number;
  readonly follow: readonly JobDraft[];
}

/** A collection as its store shows it, of one moment. */
export interface CollectionRow extends Omit<CollectionDraft, "series" | "follow"> {
  readonly state: CollectionState;
  readonly series: readonly SeriesRow[];
  readonly createdAt: number;
  /** When the latest part was accepted or announced; at first, when it was opened. */
  readonly activeAt: number;
  readonly transitions: readonly Transition[];
  /** Why it was abandoned or cancelled; null: it was not. */
  readonly why: string | null;
  /** How many messages of it are parked. */
  readonly parked: number;
  /** The input is not what was stored, because the store was damaged: nothing may run with it. Omitted: it is. */
  readonly corrupt?: true;
}

export interface SeriesRow {
  readonly name: string;
  readonly expected: number | null;
  /** How many parts are there. */
  readonly have: number;
  readonly bytes: number;
}

/** A state of a collection, and since when. */
export interface Transition {
  /** The state. */
  readonly state: CollectionState;
  /** Since when, in milliseconds since 1970. */
  readonly at: number;
}

/** Transitions as stores keep them: "requested 1700000000000,collecting 1700000000100". */
export function decodeTransitions(text: string): Transition[] {
  return text.split(",").map((one) => {
    const [state, at] = one.split(" ");
    return { state: state as CollectionState, at: Number(at) };
  });
}

/** A part of a collection, stored or on its way. */
export interface Part {
  readonly collection: string;
  readonly series: string;
  readonly ordinal: number;
  /** Its name in the blob store, which carries the hash. */
  readonly blob: string;
  readonly bytes: number;
  /** In hexadecimal. */
  readonly sha256: string;
}

export type PartPlace = Pick<Part, "collection" | "series" | "ordinal">;

export const PUT_ANSWERS = ["accepted", "duplicate", "conflict", "closed", "unknown"] as const;
/**
 * What became of a part. accepted: stored now. duplicate: the same bytes were stored before. conflict: other bytes were, or the series has
 * fewer parts; what was there first stays. closed: the collection takes no more parts. unknown: there is no such collection or series.
 */
export type PutAnswer = (typeof PUT_ANSWERS)[number];

/** What a store knows about the place of a part before it is put. */
export interface KnownPlace {
  /** The name of the collection's kind. */
  readonly kind: string;
  readonly state: CollectionState;
  /** Null: no such series. */
  readonly series: { readonly expected: number | null } | null;
  /** Of the part that is there; null: none. */
  readonly sha256: string | null;
}

/** What becomes of a part with this hash. One rule, before its blob is stored and again in the transaction that keeps its row. */
export function answerPut(known: KnownPlace | null, { ordinal, sha256 }: Pick<Part, "ordinal" | "sha256">): PutAnswer {
  if (known === null || known.series === null) return "unknown";
  if (known.sha256 !== null) return known.sha256 === sha256 ? "duplicate" : "conflict";
  if (!isOpen(known.state)) return "closed";
  const { expected } = known.series;
  return expected !== null && ordinal > expected ? "conflict" : "accepted";
}

/** What becomes of an announcement: nothing of it is written, or these are. */
export type AnnounceAnswer =
  | { readonly is: "announced" }
  /** The collection takes nothing any more. The same numbers as before are `announced` all the same. */
  | { readonly is: "closed"; readonly state: CollectionState }
  | { readonly is: "unknown"; readonly series: string | null }
  | { readonly is: "contradicts"; readonly series: string; readonly why: string };

/** One rule for every store. `highest`: the highest ordinal of the series; null: it has no part. */
export function decideAnnounce<S extends { readonly name: string; readonly expected: number | null }>(
  state: CollectionState,
  series: readonly S[],
  expected: Readonly<Record<string, number>>,
  highest: (series: S) => number | null,
):
  | Exclude<AnnounceAnswer, { is: "announced" }>
  | { readonly news: readonly { readonly series: S; readonly count: number }[] } {
  const news: { readonly series: S; readonly count: number }[] = [];
  for (const [name, count] of Object.entries(expected)) {
    const one = series.find((row) => row.name === name);
    if (one === undefined) return { is: "unknown", series: name };
    if (one.expected === count) continue;
    if (one.expected !== null) return { is: "contradicts", series: name, why: announcedBefore(one.expected) };
    const last = highest(one);
    if (last !== null && last > count) return { is: "contradicts", series: name, why: partIsThere(last) };
    news.push({ series: one, count });
  }
  return news.length > 0 && !isOpen(state) ? { is: "closed", state } : { news };
}

export const announcedBefore = (count: number): string => `it was announced with ${count} parts before`;
export const partIsThere = (ordinal: number): string => `its part ${ordinal} is there`;

/** When something is to be decided about it at the latest, if no part comes. */
export function dueAt({
  activeAt,
  createdAt,
  idleMs,
  totalMs,
}: Pick<CollectionRow, "activeAt" | "createdAt" | "idleMs" | "totalMs">): number {
  return Math.min(activeAt + idleMs, createdAt + totalMs);
}

/** Whether the sums say that all parts are there. The set itself is counted once, when the collection ends. */
export function isFull(series: readonly SeriesRow[]): boolean {
  return series.every(({ expected, have }) => expected !== null && have >= expected);
}

/** How an open collection ends; null: it goes on. `now` is the store's clock. */
export function decideCollection(
  row: CollectionRow,
  now: number,
): { readonly to: "complete" } | { readonly to: "abandoned"; readonly why: string } | null {
  if (!isOpen(row.state)) return null;
  if (isFull(row.series)) return { to: "complete" };
  if (now < dueAt(row)) return null;
  const { createdAt, totalMs, idleMs } = row;
  const why =
    now >= createdAt + totalMs
      ? `it was not complete ${totalMs} ms after it was opened`
      : `no part of it came for ${idleMs} ms`;
  return { to: "abandoned", why };
}

/** Which states a collection may leave for another one, by what. */
export const STEPS: Readonly<Record<Exclude<CollectionState, "requested">, readonly CollectionState[]>> = {
  collecting: ["requested"],
  complete: ["requested", "collecting"],
  notified: ["complete"],
  abandoned: ["requested", "collecting"],
  cancelled: ["requested", "collecting"],
};

/** A job of a collection: what it is for, and with that its kind and its id. */
export const COLLECTION_JOBS = ["request", "done", "notify", "ended", "clean-up"] as const;
export type CollectionJob = (typeof COLLECTION_JOBS)[number];

/** Its id is made of the collection and what it does, so that it is added once. */
export function jobOf({ id, kind }: Pick<CollectionDraft, "id" | "kind">, job: CollectionJob, delayMs = 0): JobDraft {
  return {
    id: jobIdOf(id, job),
    kind: jobKind(kind, job),
    input: JSON.stringify({ collection: id }),
    priority: 0,
    runAt: null,
    delayMs,
    dedupeKey: null,
  };
}

export function jobIdOf(id: string, job: CollectionJob): string {
  return `${id}:${job}`;
}

/** The job that follows the last part has the name of the collection's kind itself. */
export function jobKind(kind: string, job: CollectionJob): string {
  return job === "done" ? kind : `${kind}:${job}`;
}

/** What follows from a state. Parts are cleaned up by a job of their own, which is due when they have been kept long enough. */
export function followOf(row: Pick<CollectionRow, "id" | "kind" | "keepMs">, to: CollectionState): readonly JobDraft[] {
  switch (to) {
    case "complete":
      return [jobOf(row, "done"), jobOf(row, "notify")];
    case "abandoned":
    case "cancelled":
      return [jobOf(row, "ended"), jobOf(row, "clean-up", row.keepMs)];
    case "notified":
      return [jobOf(row, "clean-up", row.keepMs)];
    default:
      return [];
  }
}

/** Ordinals that are missing, as ranges. `cut`: there are more than are listed. */
export interface MissingOrdinals {
  readonly ranges: readonly (readonly [first: number, last: number])[];
  readonly cut: boolean;
}

/** "3, 17-42", and "..." if there are more; empty: none is missing. */
export function rangesText({ ranges, cut }: MissingOrdinals): string {
  const listed = ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
  return [...listed, ...(cut ? ["..."] : [])].join(", ");
}

/** A message that was set aside, with the reason. */
export interface ParkedMessage {
  /** Made of what was parked, so that the same message is parked once. */
  readonly id: string;
  /** The kind of collection that it came for. */
  readonly kind: string;
  /** Its collection; null: it names none. */
  readonly collection: string | null;
  /** Its series; null: it names none. */
  readonly series: string | null;
  /** Its number within the series; null: it names none. */
  readonly ordinal: number | null;
  /** Why it was parked, in words. */
  readonly reason: string;
  /** The key of its body in the blob store; null: it has none that could be kept. */
  readonly blob: string | null;
  /** The size of its body in bytes. */
  readonly bytes: number;
}

/** A parked message as the store keeps it. */
export interface ParkedRow extends ParkedMessage {
  /** When it was set aside, in milliseconds since 1970. */
  readonly at: number;
}

export function assertOrdinal(ordinal: unknown, where: string): asserts ordinal is number {
  if (Number.isInteger(ordinal) && (ordinal as number) >= 1 && (ordinal as number) <= MAX_ORDINAL) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${where} has the ordinal ${JSON.stringify(ordinal)}.`,
    `Nothing was stored. Ordinals are whole numbers from 1 to ${MAX_ORDINAL}.`,
    { ordinal },
  );
}
