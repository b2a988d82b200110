// What programs do with collections: open them, announce and put parts, watch, abandon and cancel them, and deal with parked messages. No thread and
// no timer: any process may use it, and none has to stay.
import type { AuditEntry } from "../job/audit.ts";
import {
  assertOrdinal,
  type CollectionRow,
  type CollectionState,
  followOf,
  isOpen,
  jobOf,
  MAX_ORDINAL,
  type ParkedRow,
  type PutAnswer,
  rangesText,
  STEPS,
  type Transition,
} from "../job/collections.ts";
import { assertKey, invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { encodeJson, type Json } from "../job/json.ts";
import type { Clock } from "../job/time.ts";
import { endComplete } from "../recovery/collection-ends.ts";
import type { AnnounceAnswer, CollectionCount, CollectionFilter, Collections } from "../stores/collections.ts";
import { type ParkedAs, parkedAs, type PartBlobs, sha256 } from "./blob-names.ts";
import type { AnyCollection } from "./contract.ts";
import { announce, Intake, needBlobs } from "./intake.ts";
import { expectedIn } from "./messages.ts";

/** The options of `collect`. */
export interface CollectOptions {
  /** The collection's id, if you have one: collecting it again returns the first with `created: false`. Default: a new one. 1 to 200 characters. */
  readonly id?: string;
  /** How many parts some or all series have. Default: a header or `announce` says it later. */
  readonly expect?: Readonly<Record<string, number>>;
}

/** What `engine.collect` returns. */
export interface CollectionStarted {
  /** The collection's id. */
  readonly id: string;
  /** False: there was a collection with this id, and it is as it was. */
  readonly created: boolean;
}

/** A series as people and programs see it. */
export interface SeriesInfo {
  /** Null: not announced yet. */
  readonly expected: number | null;
  /** How many parts are there. */
  readonly have: number;
  /** "3, 17-42"; of a series that is not announced, up to its highest part. Empty: nothing is missing. */
  readonly missing: string;
  /** Their size together, in bytes. */
  readonly bytes: number;
}

/** A collection as people and programs see it. */
export interface CollectionInfo {
  /** The collection's id. */
  readonly id: string;
  /** The name of its kind. */
  readonly kind: string;
  /** Where it stands. */
  readonly state: CollectionState;
  /** Its input. */
  readonly input: Json;
  /** How far each series is. */
  readonly series: Readonly<Record<string, SeriesInfo>>;
  /** Its parked messages, at most 100. */
  readonly parked: readonly ParkedRow[];
  /** When it was begun, in milliseconds since 1970. */
  readonly createdAt: number;
  /** When it last changed (a part, an announcement, a new state), in milliseconds since 1970. */
  readonly updatedAt: number;
  /** When the latest part or announcement came, in milliseconds since 1970. */
  readonly lastActivity: number;
  /** Its states so far, with their times. */
  readonly transitions: readonly Transition[];
  /** Why it stands as it does. */
  readonly why: string;
}

/** Ranges of missing ordinals that a report lists. */
const MAX_RANGES = 1_000;
const MAX_PARKED = 100;
/** A collection's id is a part of the ids of its jobs. */
const MAX_ID = 200;

export interface CollectionClientDeps {
  readonly collections: Collections;
  /** Null: none was given. Then nothing can be put. */
  readonly blobs: PartBlobs | null;
  readonly events: Emitter;
  readonly newId: () => string;
  readonly clock: Clock;
  /** Makes the job with this id of the body of a message; "kept": it does not fit, or this program does not know the kind. */
  readonly enqueue: (kind: string, body: Buffer, id: string) => Promise<"accepted" | "duplicate" | "kept">;
  /** The maximum size of a part of this kind, in bytes; Infinity: this program does not know the kind. */
  readonly messageMax: (kind: string) => number;
}

export class CollectionClient {
  readonly #deps: CollectionClientDeps;
  #intake: Intake | undefined;

  /** Use the engine. @internal */
  constructor(deps: CollectionClientDeps) {
    this.#deps = deps;
  }

  /** For what consumes messages in this process. @internal */
  intake(kind: string): Intake {
    const { collections, blobs, events, clock } = this.#deps;
    return (this.#intake ??= new Intake(collections, needBlobs(blobs, kind), events, clock));
  }

  async collect(contract: AnyCollection, input: unknown, options: CollectOptions): Promise<CollectionStarted> {
    const { collections, events, newId } = this.#deps;
    const { name: kind, settings } = contract;
    const { id = newId(), expect = {} } = options;
    assertKey(id, `The id of a ${kind} collection`);
    if (id.length > MAX_ID)
      throw new OutliveError(
        ErrorCode.keyInvalid,
        `The id of a ${kind} collection has ${id.length} characters.`,
        `Nothing was opened. Use at most ${MAX_ID}.`,
        { id },
      );
    assertExpected(contract, expect);
    const checked = await contract.input?.["~standard"].validate(input);
    if (checked?.issues) throw invalidInput(kind, checked.issues);
    const draft = {
      id,
      kind,
      input: encodeJson(input === undefined ? null : input, `The input of ${kind}`),
      series: settings.series.map((name) => ({ name, expected: expect[name] ?? null })),
      idleMs: settings.idleMs,
      totalMs: settings.totalMs,
      keepMs: settings.keepMs,
      follow: [jobOf({ id, kind }, "request")],
    };
    const { created, collection } = await collections.open(draft);
    if (collection.kind !== kind)
      throw new OutliveError(
        ErrorCode.wrongState,
        `There is a collection ${id} already, and it is a ${collection.kind}.`,
        "Nothing was opened. Use another id.",
        { id, kind, found: collection.kind },
      );
    if (created) {
      events.emit("collection.started", { collection: id, kind });
      // Of parts that are announced as none.
      if (draft.series.every(({ expected }) => expected === 0)) await endComplete(collections, events, [id]);
    }
    return { id, created };
  }

  async announce(contract: AnyCollection, id: string, expected: Readonly<Record<string, number>>): Promise<void> {
    assertKey(id, "The collection's id");
    assertExpected(contract, expected);
    const answer = await announce(this.#deps.collections, contract.name, id, expected);
    if (answer.is !== "announced") throw refused(contract.name, id, answer);
    await endComplete(this.#deps.collections, this.#deps.events, [id]);
  }

  async put(
    contract: AnyCollection,
    id: string,
    series: string,
    ordinal: number,
    data: Uint8Array,
  ): Promise<PutAnswer> {
    const { name: kind, settings } = contract;
    assertKey(id, "The collection's id");
    assertOrdinal(ordinal, `A part of ${kind} ${id}`);
    if (!(data instanceof Uint8Array) || data.length > settings.messageMax)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        data instanceof Uint8Array
          ? `Part ${ordinal} of ${series} of ${kind} ${id} has ${data.length} bytes, and at most ${settings.messageMax} are allowed.`
          : `Part ${ordinal} of ${series} of ${kind} ${id} is not bytes.`,
        "Nothing was stored. Cut it into several parts, or raise `message.max`; pass a Uint8Array or a Buffer.",
        { collection: id, series, ordinal },
      );
    const intake = this.intake(kind);
    const [answer] = await intake.put(kind, [{ collection: id, series, ordinal, data }]);
    if (answer === "accepted") await intake.check([id]);
    return answer!;
  }

  async get(id: string): Promise<CollectionInfo | null> {
    const [row] = await this.#deps.collections.get([id]);
    return row ? this.#info(row) : null;
  }

  async list(filter: CollectionFilter, limit: number, after: string | null): Promise<readonly CollectionInfo[]> {
    const rows = await this.#deps.collections.list(filter, limit, after);
    return Promise.all(rows.map((row) => this.#info(row)));
  }

  counts(): Promise<readonly CollectionCount[]> {
    return this.#deps.collections.counts();
  }

  /** Ends an open collection. What follows is a job, as if its time had passed. */
  async end(id: string, to: "abandoned" | "cancelled", why: string, entry: AuditEntry): Promise<CollectionState> {
    const { collections, events } = this.#deps;
    const [row] = await collections.get([id]);
    if (!row) throw missingCollection(id);
    const ended =
      isOpen(row.state) &&
      (await collections.step({ collection: id, from: STEPS[to], to, why, follow: followOf(row, to) }, entry));
    if (ended) {
      events.emit("collection.changed", { collection: id, kind: row.kind, state: to, why });
      return to;
    }
    const state = (await collections.get([id]))[0]?.state ?? row.state;
    if (state === to) return to;
    throw new OutliveError(
      ErrorCode.wrongState,
      `Collection ${id} is ${state}; only one that is requested or collecting can be ${to}.`,
      "Nothing was changed.",
      { collection: id, state },
    );
  }

  parked(
    filter: { readonly kind?: string; readonly collection?: string },
    limit: number,
    after: string | null,
  ): Promise<readonly ParkedRow[]> {
    return this.#deps.collections.parked(filter, limit, after);
  }

  /** Handles a parked message again, as what it came as. What can't be handled this time either stays parked. */
  async retryParked(message: ParkedRow, entry: AuditEntry): Promise<PutAnswer | "kept"> {
    const { collections } = this.#deps;
    const { id, kind, collection, blob } = message;
    if (blob === null) return "kept";
    const blobs = needBlobs(this.#deps.blobs, kind);
    const body = await bodyOf(blobs, blob);
    if (body === null) return "kept";
    const answer = await this.#handleAgain(message, parkedAs(blob), body);
    if (answer !== "accepted" && answer !== "duplicate" && answer !== "closed") return answer;
    await collections.unpark([id], entry);
    await blobs.delete([blob]).catch(() => {});
    if (collection !== null) await endComplete(collections, this.#deps.events, [collection]);
    return answer;
  }

  async #handleAgain(
    { kind, collection, series, ordinal }: ParkedRow,
    as: ParkedAs | null,
    data: Buffer,
  ): Promise<PutAnswer | "kept"> {
    if (as?.is === "job") return this.#deps.enqueue(kind, data, as.job);
    if (collection === null) return "kept";
    // A name of an earlier version does not say it; a part has a series.
    if (as?.is === "header" || (as === null && series === null && ordinal === null)) {
      const expected = expectedIn(data);
      return typeof expected === "string" ? "kept" : this.#announceAgain(kind, collection, expected);
    }
    const isGood =
      data.length <= this.#deps.messageMax(kind) && (as?.sha256 === undefined || as.sha256 === sha256(data));
    if (series === null || ordinal === null || ordinal < 1 || ordinal > MAX_ORDINAL || !isGood) return "kept";
    const [answer] = await this.intake(kind).put(kind, [{ collection, series, ordinal, data }]);
    const total = as?.total ?? null;
    if (total === null || (answer !== "accepted" && answer !== "duplicate")) return answer!;
    const announced = await this.#announceAgain(kind, collection, { [series]: total });
    return announced === "conflict" ? announced : answer;
  }

  async #announceAgain(kind: string, id: string, expected: Readonly<Record<string, number>>): Promise<PutAnswer> {
    const { is } = await announce(this.#deps.collections, kind, id, expected);
    return is === "announced" ? "accepted" : is === "contradicts" ? "conflict" : is;
  }

  /** Forgets a parked message, with its body: first that, so that what fails can be repeated. */
  async dropParked({ id, blob }: ParkedRow, entry: AuditEntry): Promise<void> {
    const { collections, blobs } = this.#deps;
    if (blob !== null) await blobs?.delete([blob]);
    await collections.unpark([id], entry);
  }

  async #info(row: CollectionRow): Promise<CollectionInfo> {
    const { collections } = this.#deps;
    const { id, kind, state, input, createdAt, activeAt, transitions } = row;
    const parked = row.parked === 0 ? [] : await collections.parked({ collection: id }, MAX_PARKED, null);
    const series: Record<string, SeriesInfo> = {};
    for (const { name, expected, have, bytes } of row.series) {
      // Each ordinal counts once, and none is beyond the number: as many as expected are all.
      const isWhole = expected !== null && have >= expected;
      const missing = isWhole ? "" : rangesText(await collections.missing(id, name, MAX_RANGES));
      series[name] = { expected, have, missing, bytes };
    }
    return {
      id,
      kind,
      state,
      input: readable(input),
      series,
      parked,
      createdAt,
      updatedAt: Math.max(activeAt, transitions.at(-1)!.at),
      lastActivity: activeAt,
      transitions,
      why: whyOf(row, series),
    };
  }
}

/** Null: it is gone. An earlier version gave two messages with the same bytes one body, and another process may have handled this one. */
async function bodyOf(blobs: PartBlobs, blob: string): Promise<Buffer | null> {
  const chunks: Uint8Array[] = [];
  try {
    for await (const chunk of blobs.get(blob)) chunks.push(chunk);
  } catch (thrown) {
    if ((thrown as OutliveError).code === ErrorCode.blobNotFound) return null;
    throw thrown;
  }
  return Buffer.concat(chunks);
}

function readable(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}

function whyOf({ state, why, parked }: CollectionRow, series: Readonly<Record<string, SeriesInfo>>): string {
  if (why !== null) return why;
  if (state === "complete") return "all parts are there; what follows runs";
  if (state === "notified") return "all parts are there, and what follows has been handed on";
  const waits = Object.entries(series).flatMap(([name, { expected, have, missing }]) => {
    if (expected === null) return [`${name} is not announced`];
    return have < expected ? [`${name} lacks ${expected - have} of ${expected} (${missing})`] : [];
  });
  const aside = parked === 0 ? [] : [`${parked} message(s) of it are parked`];
  if (state === "requested" && aside.length === 0 && waits.length === 0) return "its producer is being asked";
  return [...waits, ...aside].join("; ") || "all parts are there; the next check ends it";
}

/** Says which numbers of parts can't be. */
export function assertExpected(
  { name: kind, settings }: Pick<AnyCollection, "name" | "settings">,
  expected: Readonly<Record<string, number>>,
): void {
  for (const [name, count] of Object.entries(expected)) {
    const isSeries = settings.series.includes(name);
    if (isSeries && Number.isInteger(count) && count >= 0 && count <= MAX_ORDINAL) continue;
    throw new OutliveError(
      ErrorCode.optionInvalid,
      isSeries
        ? `The series ${name} of ${kind} is announced with ${JSON.stringify(count)} parts.`
        : `The collection ${kind} has no series ${JSON.stringify(name)}.`,
      isSeries
        ? `Nothing was changed. Use a whole number from 0 to ${MAX_ORDINAL}.`
        : `Nothing was changed. It has ${settings.series.join(", ")}.`,
      { kind, series: name, count },
    );
  }
}

export function missingCollection(id: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no collection ${id}.`,
    "Check the id; ended collections are kept for the retention of their kind only.",
    { collection: id },
  );
}

function refused(kind: string, id: string, answer: Exclude<AnnounceAnswer, { is: "announced" }>): OutliveError {
  if (answer.is === "unknown" && answer.series === null) return missingCollection(id);
  const what =
    answer.is === "closed"
      ? `it is ${answer.state}`
      : answer.is === "unknown"
        ? `it has no series ${answer.series}`
        : `of its series ${answer.series}, ${answer.why}`;
  return new OutliveError(
    ErrorCode.wrongState,
    `Parts of ${kind} ${id} can't be announced like this: ${what}.`,
    "Nothing was changed. `outlive collection ID` shows its state.",
    { collection: id, ...answer },
  );
}
