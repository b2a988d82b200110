// What must hold of collections, read from the rows, the blobs and what left the processes:
//
// - lost: a message is acknowledged only when its part is kept, with its bytes in its blob, or the collection has ended; and what is kept stays.
// - twice: a place has one part, the first that was kept; sums are what the rows come to.
// - early: a collection is complete only with every ordinal from 1 to its number in each series, and abandoned only after its time without a part.
// - never: a collection all of whose parts were sent is notified in the end, and one whose parts were not is abandoned, with what is missing.
// - notified: after it is complete, under one message id, with one body; what follows the last part ran.
// - state: states follow each other as they may, each once.
// - left: what has ended is cleaned up after its time, with its blobs, and nothing before that.
import { jobIdOf, rangesText, STEPS } from "../../../src/job/collections.ts";
import type { CollectionState } from "../../../src/job/collections.ts";
import type { OutgoingMessage } from "../../../src/stores/broker.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { VirtualClock } from "../../../src/testing/virtual-clock.ts";
import { createHash } from "node:crypto";

/** The settings of the kind. */
export const IDLE_MS = 60_000;
export const KEEP_MS = 60_000;

interface Plan {
  readonly counts: Readonly<Record<string, number>>;
  readonly isWhole: boolean;
}

interface Row {
  readonly id: string;
  readonly seq: number;
  readonly state: number;
  readonly transitions: string;
  readonly active_at: number;
}

interface PartRow {
  readonly id: string;
  readonly state: number;
  readonly series: string;
  readonly ordinal: number;
  readonly sha256: string;
  readonly blob: string;
}

const PARTS = `SELECT c.id, c.state, s.name AS series, p.ordinal, p.sha256, p.blob FROM outlive_parts p
  JOIN outlive_collections c ON c.seq = p.collection JOIN outlive_series s ON s.collection = p.collection AND s.place = p.series`;
const COLLECTIONS = `SELECT c.id, c.seq, c.state, t.transitions, c.active_at FROM outlive_collections c
  JOIN outlive_collection_texts t ON t.collection = c.seq`;

export class CollectionLaws {
  readonly #db: Database;
  readonly #blobs: ReadonlyMap<string, Buffer>;
  readonly #clock: VirtualClock;
  readonly #plans = new Map<string, Plan>();
  /** What was sent of each place, by its hash. */
  readonly #sent = new Map<string, string>();
  /** The hash of the part that a place was seen with first. */
  readonly #first = new Map<string, string>();
  readonly #bodies = new Map<string, string>();
  readonly #done = new Map<string, number>();
  readonly #ended = new Map<string, string>();
  readonly #complete = new Set<string>();
  /** When each was first seen to have ended. */
  readonly #endedAt = new Map<string, number>();

  constructor(db: Database, blobs: ReadonlyMap<string, Buffer>, clock: VirtualClock) {
    this.#db = db;
    this.#blobs = blobs;
    this.#clock = clock;
  }

  planned(id: string, counts: Readonly<Record<string, number>>, isWhole: boolean): void {
    this.#plans.set(id, { counts, isWhole });
  }

  sent(id: string, series: string, ordinal: number, body: string): void {
    this.#sent.set(`${id} ${series} ${ordinal}`, body);
  }

  done(id: string): void {
    this.#done.set(id, (this.#done.get(id) ?? 0) + 1);
  }

  abandoned(id: string, missing: Readonly<Record<string, string>>): void {
    this.#ended.set(id, JSON.stringify(missing));
  }

  /** What a broker forgets must be kept. */
  acknowledged(headers: Readonly<Record<string, unknown>>, body: Buffer): void {
    const [id, series, ordinal] = ["collection", "series", "ordinal"].map((name) => headers[`outlive-${name}`]);
    const place = `${String(id)} ${String(series)} ${String(ordinal)}`;
    if (this.#sent.get(place) !== body.toString()) return;
    const [row] = this.#db.sql(`${COLLECTIONS} WHERE c.id = ?`).all(String(id)) as unknown as Row[];
    // It has ended, and may have been cleaned up since.
    if (row === undefined || row.state > 2) return;
    const [part] = this.#db
      .sql(`${PARTS} WHERE c.id = ? AND s.name = ? AND p.ordinal = ?`)
      .all(String(id), String(series), Number(ordinal)) as unknown as PartRow[];
    broken(part === undefined, "lost", `${place} was acknowledged and is not kept`);
  }

  notified({ messageId, body, headers }: OutgoingMessage): void {
    const id = String(headers["outlive-collection"]);
    broken(!this.#complete.has(id) && !this.#isComplete(id), "notified", `${id} before it was complete`);
    const text = JSON.stringify(body);
    broken(messageId !== `${id}:complete`, "notified", `${id} as ${messageId}`);
    broken((this.#bodies.get(id) ?? text) !== text, "notified", `${id} with another body than before`);
    this.#bodies.set(id, text);
  }

  /** After every second. */
  look(): void {
    for (const part of this.#db.sql(PARTS).all() as unknown as PartRow[]) {
      const { id, state, series, ordinal, sha256, blob } = part;
      const place = `${id} ${series} ${ordinal}`;
      const first = this.#first.get(place) ?? sha256;
      this.#first.set(place, first);
      broken(first !== sha256, "twice", `${place} has other bytes than before`);
      const bytes = this.#blobs.get(blob);
      // Of one that has ended, blobs go before the rows that name them.
      if (state <= 2) broken(bytes === undefined, "lost", `${place} has no blob`);
      if (bytes !== undefined)
        broken(hashOf(bytes) !== sha256, "lost", `the blob of ${place} is not what its row says`);
    }
    for (const row of this.#db.sql(COLLECTIONS).all() as unknown as Row[]) this.#lookAt(row);
  }

  #lookAt({ id, seq, state, transitions, active_at }: Row): void {
    const path = transitions.split(",").map((one) => one.split(" ")[0]!) as CollectionState[];
    const steps = path.slice(1).map((to, i) => [path[i]!, to] as const);
    const wrong = steps.find(([from, to]) => to === "requested" || !STEPS[to].includes(from));
    broken(wrong !== undefined, "state", `${id} went from ${wrong?.join(" to ")}`);
    if (state === 2 || state === 3) {
      // Looked at once, before its parts may be cleaned up.
      if (!this.#complete.has(id))
        broken(!this.#isWhole(id, seq), "early", `${id} is complete without all of its parts`);
      this.#complete.add(id);
    }
    if (state >= 3 && !this.#endedAt.has(id)) this.#endedAt.set(id, this.#clock.now());
    const at = Number(transitions.split(",").at(-1)!.split(" ")[1]);
    broken(
      state === 4 && at < active_at + IDLE_MS,
      "early",
      `${id} was abandoned ${at - active_at} ms after its last part`,
    );
    const counts = this.#plans.get(id)!.counts;
    for (const { name, have, own, expected } of this.#sums(seq)) {
      if (state <= 2) broken(have !== own, "twice", `${id} counts ${have} parts of ${name}, and has ${own}`);
      broken(expected !== null && expected !== counts[name], "state", `${id} expects ${expected} parts of ${name}`);
    }
  }

  #sums(seq: number): { name: string; expected: number | null; have: number; own: number }[] {
    return this.#db
      .sql(
        `SELECT s.name, s.expected, s.have, (SELECT count(*) FROM outlive_parts p WHERE p.collection = s.collection AND p.series = s.place) AS own
         FROM outlive_series s WHERE s.collection = ?`,
      )
      .all(seq) as never;
  }

  #isComplete(id: string): boolean {
    const [row] = this.#db.sql(`${COLLECTIONS} WHERE c.id = ?`).all(id) as unknown as Row[];
    return row !== undefined && (row.state === 2 || row.state === 3);
  }

  #isWhole(id: string, seq: number): boolean {
    const counts = this.#plans.get(id)!.counts;
    return this.#sums(seq).every(({ name, own }) => own === counts[name]);
  }

  /** When everything has had its time. */
  audit(): void {
    for (const [id, { counts, isWhole }] of this.#plans) {
      if (isWhole) {
        broken(!this.#complete.has(id), "never", `${id} has all of its parts and is not complete`);
        broken(!this.#bodies.has(id), "never", `${id} was never notified`);
        broken(!this.#done.has(id), "never", `what follows ${id} never ran`);
        const body = JSON.parse(this.#bodies.get(id)!) as { series: Record<string, { parts: { ordinal: number }[] }> };
        for (const [name, count] of Object.entries(counts)) {
          const listed = body.series[name]!.parts.map(({ ordinal }) => ordinal);
          const all = Array.from({ length: count }, (_, n) => n + 1);
          broken(listed.join() !== all.join(), "notified", `${id} lists ${listed.join()} of ${name}`);
        }
      } else {
        broken(!this.#ended.has(id), "never", `${id} lacks parts and was never abandoned`);
        broken(this.#complete.has(id), "early", `${id} lacks parts and was complete`);
        this.#auditMissing(id, counts);
      }
      const jobs = this.#db
        .sql(
          "SELECT id FROM outlive_jobs WHERE input = ? AND kind = (SELECT id FROM outlive_kinds WHERE name = 'scan')",
        )
        .all(JSON.stringify({ collection: id })) as { id: string }[];
      const unlike = jobs.filter((job) => job.id !== jobIdOf(id, "done"));
      broken(unlike.length > 0, "twice", `${id} is followed by ${unlike.map((job) => job.id).join()}`);
    }
    for (const [id, at] of this.#endedAt) {
      if (this.#clock.now() < at + KEEP_MS + 60_000) continue;
      const [row] = this.#db.sql(`${COLLECTIONS} WHERE c.id = ?`).all(id);
      broken(row !== undefined, "left", `the rows of ${id}`);
      const blobs = [...this.#blobs.keys()].filter((key) => key.startsWith(`collections/scan/${id}/`));
      broken(blobs.length > 0, "left", `${blobs.length} blobs of ${id}`);
    }
  }

  /** A series that was announced is reported by its ordinals. What no one sent is among them. */
  #auditMissing(id: string, counts: Readonly<Record<string, number>>): void {
    const reported = JSON.parse(this.#ended.get(id)!) as Record<string, string>;
    for (const [name, count] of Object.entries(counts)) {
      const missing = Array.from({ length: count }, (_, n) => n + 1).filter(
        (n) => !this.#first.has(`${id} ${name} ${n}`),
      );
      const expected = rangesText({ ranges: asRanges(missing), cut: false });
      broken(
        reported[name] !== expected,
        "never",
        `${id} reports ${reported[name]} of ${name} as missing, not ${expected}`,
      );
    }
  }
}

function broken(is: boolean, law: string, what: string): void {
  if (is) throw new Error(`${law}: ${what}`);
}

function hashOf(bytes: Buffer): string {
  return createHash("sha256").update(bytes).digest("hex");
}

function asRanges(ordinals: readonly number[]): [number, number][] {
  const ranges: [number, number][] = [];
  for (const ordinal of ordinals) {
    const last = ranges.at(-1);
    if (last && last[1] === ordinal - 1) last[1] = ordinal;
    else ranges.push([ordinal, ordinal]);
  }
  return ranges;
}
