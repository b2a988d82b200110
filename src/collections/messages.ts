// Messages of a broker that become parts and announcements. All that came together shares one transaction, and is acknowledged when that is durable.
// A message that can't become a part is parked, with its body and the reason, and acknowledged: it stops no other.
import { MAX_ORDINAL, type ParkedMessage, type PutAnswer } from "../job/collections.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Consumer, Delivery, Verdict } from "../stores/broker.ts";
import type { AnnounceAnswer, Collections } from "../stores/collections.ts";
import { type ParkedAs, parkedBlobOf, type PartBlobs, sha256 } from "./blob-names.ts";
import type { AnyCollection } from "./contract.ts";
import { announce, type IncomingPart, type Intake } from "./intake.ts";

/**
 * A message that was in hand when this many processes died leaves its queue: from then on it is handled one at a time, so that it holds up no other, and a
 * further death is its own. Most deaths have another cause, and then one delivery more is enough.
 */
export const MAX_IN_COMPANY = 4;
/** After this many deliveries alone it is parked: its handling may have ended the process each time. */
export const MAX_ALONE = 14;
/** And after this many more without its body, because storing that may end the process, too. Then the message stays with the broker. */
export const MAX_PARKINGS = 3;
/** How long a process that has started takes none of those: what comes from other queues is stored before one of them may end it. */
export const ALONE_REST_MS = 250;
const MAX_PREFETCH = 256;
const HEADERS = 16;

/** How many messages of a kind one process holds: no more than its memory has room for. */
export function roomOf({ settings: { memory, messageMax } }: AnyCollection): number {
  return Math.min(MAX_PREFETCH, Math.max(1, Math.floor(memory / messageMax)));
}

/** What is known of the jobs of this process that were in flight at a death. A message that ends the process must not be taken for one of them. */
export interface MessageSuspects {
  areHeld(): boolean;
  /** Works while no such job is claimed. `alone`: and begins when none is held. Null: it was called off before. */
  apart<T>(alone: boolean, work: () => Promise<T>, signal: AbortSignal): Promise<T | null>;
}

/** Messages that were in hand at this many deaths are not handled next to such a job. After one death most are: it had another cause, as a rule. */
const APART_AFTER = 2;

/** Handles messages apart from suspect jobs, if they were delivered before. */
export async function apart(
  { suspects, signal }: Pick<MessageDeps, "suspects" | "signal">,
  deliveries: readonly Delivery[],
  handle: (deliveries: readonly Delivery[]) => Promise<readonly Verdict[]>,
): Promise<readonly Verdict[]> {
  const times = Math.max(...deliveries.map(({ redelivered }) => redelivered));
  if (times === 0) return handle(deliveries);
  const verdicts = await suspects.apart(times >= APART_AFTER, () => handle(deliveries), signal);
  return verdicts ?? deliveries.map(() => "requeue");
}

export interface MessageDeps {
  readonly collections: Collections;
  readonly blobs: PartBlobs;
  readonly intake: Intake;
  readonly events: Emitter;
  readonly suspects: MessageSuspects;
  /** Handles one message of a parked queue when the process handles none of another. Null: it was called off before. */
  readonly oneByOne: <T>(work: () => Promise<T>) => Promise<T | null>;
  /** Aborted when no more messages are handled. */
  readonly signal: AbortSignal;
}

/** What one message is: a part with its place, or why it can't be one. */
type Read = { readonly part: IncomingPart; readonly total: number | null } | { readonly refused: string };

interface Parking {
  readonly delivery: Delivery;
  readonly reason: string;
  readonly isHeader?: boolean;
}

interface Place {
  readonly collection: string | null;
  readonly series: string | null;
  readonly ordinal: number | null;
}

export class Messages {
  readonly #deps: MessageDeps;
  readonly #contract: AnyCollection;

  constructor(deps: MessageDeps, contract: AnyCollection) {
    this.#deps = deps;
    this.#contract = contract;
  }

  /** Consumers of these queues, with so many parts and headers in hand. Omitted: as many as there is room for, and a few. */
  consumers(
    queues: { readonly header?: string; readonly part?: string; readonly parked?: string },
    { parts = roomOf(this.#contract), headers = HEADERS }: { readonly parts?: number; readonly headers?: number } = {},
  ): readonly Consumer[] {
    const consumer = (queue: string, prefetch: number, handle: Consumer["handle"]): Consumer => ({
      queue,
      kind: this.#contract.name,
      prefetch,
      handle: (deliveries) => this.#reporting(queue, () => handle(deliveries)),
    });
    const { part, header, parked } = queues;
    const alone = async ([one]: readonly Delivery[]): Promise<readonly Verdict[]> => [await this.#alone(one!)];
    return [
      ...(part === undefined ? [] : [consumer(part, parts, (all) => this.#inCompany(all, (few) => this.#parts(few)))]),
      ...(header === undefined
        ? []
        : [consumer(header, headers, (all) => this.#inCompany(all, (few) => this.#headers(few)))]),
      ...(parked === undefined
        ? []
        : [{ ...consumer(parked, 1, alone), pulls: { restMs: ALONE_REST_MS, whenFree: this.#deps.oneByOne } }]),
    ];
  }

  async #reporting<T>(queue: string, handle: () => Promise<T>): Promise<T> {
    try {
      return await handle();
    } catch (thrown) {
      const error = toStoredError(thrown);
      this.#deps.events.emit("store.failed", { doing: `keeping messages of ${queue}`, error, retryInMs: 1_000 });
      throw thrown;
    }
  }

  /**
   * Handles those that may be handled together. The others are moved away, and nothing of them is read. That includes those that would have to wait for a
   * suspect job: here the messages behind them would wait, too.
   */
  async #inCompany(
    deliveries: readonly Delivery[],
    handle: (few: readonly Delivery[]) => Promise<readonly Verdict[]>,
  ): Promise<readonly Verdict[]> {
    const limit = this.#deps.suspects.areHeld() ? APART_AFTER : MAX_IN_COMPANY;
    const few = deliveries.filter(({ redelivered }) => redelivered < limit);
    const verdicts = few.length === 0 ? [] : await apart(this.#deps, few, handle);
    const byDelivery = new Map(few.map((delivery, at) => [delivery, verdicts[at]!]));
    return deliveries.map((delivery) => byDelivery.get(delivery) ?? "isolate");
  }

  async #parts(deliveries: readonly Delivery[]): Promise<readonly Verdict[]> {
    const { intake, collections } = this.#deps;
    const kind = this.#contract.name;
    const read = deliveries.map((delivery) => this.#read(delivery));
    const parts = read.flatMap((one) => ("part" in one ? [one.part] : []));
    const answers = parts.length === 0 ? [] : await intake.put(kind, parts);
    const parked: Parking[] = [];
    const totals = new Map<
      string,
      { readonly delivery: Delivery; readonly total: number; readonly part: IncomingPart }
    >();
    let next = 0;
    for (const [at, one] of read.entries()) {
      const delivery = deliveries[at]!;
      if ("refused" in one) {
        parked.push({ delivery, reason: one.refused });
        continue;
      }
      const reason = whyRefused(answers[next++]!, one.part);
      if (reason !== null) parked.push({ delivery, reason });
      else if (one.total !== null)
        totals.set(`${one.part.collection}\n${one.part.series}\n${one.total}`, {
          delivery,
          total: one.total,
          part: one.part,
        });
    }
    for (const { delivery, total, part } of totals.values()) {
      const reason = whyNotAnnounced(await announce(collections, kind, part.collection, { [part.series]: total }));
      if (reason !== null) parked.push({ delivery, reason });
    }
    await this.#park(parked);
    const touched = new Set(parts.map(({ collection }) => collection));
    // After the acknowledgements: the maintenance of any worker finds what this process does not.
    void intake.check([...touched]).catch(() => {});
    return deliveries.map(() => "ack");
  }

  async #headers(deliveries: readonly Delivery[]): Promise<readonly Verdict[]> {
    const { intake, collections } = this.#deps;
    for (const delivery of deliveries) {
      const { collection } = placeOf(delivery);
      const expected = expectedIn(delivery.body);
      const reason =
        collection === null
          ? "it has no header outlive-collection"
          : typeof expected === "string"
            ? expected
            : whyNotAnnounced(await announce(collections, this.#contract.name, collection, expected));
      if (reason !== null) await this.#park([{ delivery, reason, isHeader: true }]);
      else void intake.check([collection!]).catch(() => {});
    }
    return deliveries.map(() => "ack");
  }

  /** Of the parked queue: it was taken to be handled at once and nothing else of such a queue is handled, so a death counts for this message alone. */
  async #alone(delivery: Delivery): Promise<Verdict> {
    const { died, redelivered } = delivery;
    const isHeader = died !== null && isHeaderQueue(died.queue);
    if (redelivered >= MAX_ALONE) {
      const isWithBody = redelivered < MAX_ALONE + MAX_PARKINGS;
      const left = isWithBody
        ? ""
        : ", and so may storing its body: it is the first message of the broker's parked queue";
      const reason = `it was handled alone ${MAX_ALONE} times and never finished: its handling may end the process${left}`;
      await this.#park([{ delivery, reason, isHeader }], isWithBody);
      return isWithBody ? "ack" : "keep";
    }
    if (died === null) {
      await this.#park([{ delivery, reason: "it was sent to the queue of parked messages" }]);
      return "ack";
    }
    const [verdict] = await (isHeader ? this.#headers([delivery]) : this.#parts([delivery]));
    return verdict!;
  }

  #read(delivery: Delivery): Read {
    const { headers, body } = delivery;
    const { collection, series, ordinal } = placeOf(delivery);
    const { settings } = this.#contract;
    if (collection === null) return { refused: "it has no header outlive-collection" };
    if (series === null) return { refused: "it has no header outlive-series" };
    if (!settings.series.includes(series))
      return { refused: `its series ${series} is not one of ${settings.series.join(", ")}` };
    if (ordinal === null || ordinal < 1 || ordinal > MAX_ORDINAL)
      return {
        refused: `its header outlive-ordinal is ${shown(headers["outlive-ordinal"])} and not a whole number from 1`,
      };
    if (body.length > settings.messageMax)
      return { refused: `it has ${body.length} bytes, and at most ${settings.messageMax} are allowed` };
    const announced = headers["outlive-total"] ?? null;
    const total = totalOf(delivery);
    if (announced !== null && total === null)
      return { refused: `its header outlive-total is ${shown(announced)} and not a whole number` };
    // In capital letters, too: so some libraries write it.
    const hash = hashOf(delivery);
    if (hash.sha256 !== undefined && hash.sha256 !== sha256(body))
      return { refused: "its bytes do not have the hash of its header outlive-sha256" };
    const part = { collection, series, ordinal, data: body, ...hash };
    return { part, total };
  }

  async #park(messages: readonly Parking[], isWithBody = true): Promise<void> {
    if (messages.length === 0) return;
    const { blobs, collections, events } = this.#deps;
    const kind = this.#contract.name;
    const rows: ParkedMessage[] = [];
    for (const { delivery, reason, isHeader } of messages) {
      const { body, messageId } = delivery;
      const place = placeOf(delivery);
      const as: ParkedAs = isHeader ? { is: "header" } : { is: "part", total: totalOf(delivery), ...hashOf(delivery) };
      // The same message, however often it comes, is one.
      const id = sha256(Buffer.from(JSON.stringify([kind, place, as, sha256(body), messageId]))).slice(0, 32);
      const blob = isWithBody ? parkedBlobOf(kind, id, as) : null;
      if (blob !== null) await blobs.put(blob, body);
      rows.push({ id, kind, ...place, reason, blob, bytes: body.length });
    }
    await collections.park(rows);
    for (const { blob: _, bytes: __, ...row } of rows) events.emit("message.parked", row);
  }
}

/** Shared ones end in `.header`, those of one collection in `-header`. */
function isHeaderQueue(queue: string): boolean {
  return /[.-]header$/.test(queue);
}

function placeOf({ headers }: Delivery): Place {
  return {
    collection: textOf(headers["outlive-collection"]),
    series: textOf(headers["outlive-series"]),
    ordinal: wholeNumber(headers["outlive-ordinal"]),
  };
}

/** How many parts its series has, as far as this part says it. */
function totalOf(delivery: Delivery): number | null {
  const { headers } = delivery;
  const announced = headers["outlive-total"] ?? null;
  const total =
    announced === null && isTrue(headers["outlive-last"]) ? placeOf(delivery).ordinal : wholeNumber(announced);
  return total !== null && total <= MAX_ORDINAL ? total : null;
}

/** The hash that its bytes must have, so that they are compared with it when the message is handled again, too. */
function hashOf({ headers }: Delivery): { readonly sha256?: string } {
  const stated = headers["outlive-sha256"] ?? null;
  if (stated === null) return {};
  const text = textOf(stated)?.toLowerCase() ?? "";
  return { sha256: /^[0-9a-f]{64}$/.test(text) ? text : "0" };
}

/** Headers of some clients are bytes. At most what a key may have; stores refuse a text with NUL. */
function textOf(value: unknown): string | null {
  const text = value instanceof Uint8Array ? Buffer.from(value).toString() : value;
  return typeof text === "string" && text.length > 0 && text.length <= 255 && !text.includes("\0") ? text : null;
}

function wholeNumber(value: unknown): number | null {
  const number =
    typeof value === "string" && /^\d{1,15}$/.test(value)
      ? Number(value)
      : typeof value === "bigint"
        ? Number(value)
        : value;
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : null;
}

/** What a header holds, in a few words. JSON has no bigint, which some clients send. */
function shown(value: unknown): string {
  const text = typeof value === "bigint" ? String(value) : JSON.stringify(value ?? null);
  return text.length > 100 ? `${text.slice(0, 100)}...` : text;
}

function isTrue(value: unknown): boolean {
  return value === true || value === 1 || value === "true";
}

function whyRefused(answer: PutAnswer, { series, ordinal }: IncomingPart): string | null {
  switch (answer) {
    case "conflict":
      return `part ${ordinal} of ${series} is there with other bytes, or the series has fewer parts`;
    case "unknown":
      return "there is no such collection of this kind";
    default:
      return null;
  }
}

function whyNotAnnounced(answer: AnnounceAnswer): string | null {
  switch (answer.is) {
    case "announced":
    case "closed":
      return null;
    case "unknown":
      return answer.series === null ? "there is no such collection of this kind" : `it has no series ${answer.series}`;
    case "contradicts":
      return `of its series ${answer.series}, ${answer.why}`;
  }
}

/** {"series":{"files":160}}, or why it is not that. */
export function expectedIn(body: Uint8Array): Record<string, number> | string {
  let read: unknown;
  try {
    read = JSON.parse(Buffer.from(body).toString());
  } catch {
    return "its body is not JSON";
  }
  const series: unknown = (read as { series?: unknown } | null)?.series;
  if (typeof series !== "object" || series === null || Array.isArray(series)) return 'its body is not {"series":{...}}';
  const wrong = Object.entries(series).find(([, count]) => wholeNumber(count) === null || Number(count) > MAX_ORDINAL);
  if (wrong) return `it announces ${wrong[0]} with ${JSON.stringify(wrong[1])} parts`;
  return Object.fromEntries(Object.entries(series).map(([name, count]) => [name, Number(count)]));
}
