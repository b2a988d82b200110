// What the rig for batches submits: each batch follows from the seed and its number, so that every process knows what it is without asking, and
// the oracle knows what must come of it.
import { Chance } from "../../../src/torture/killer.ts";

/**
 * good: succeeds. bad: ends as failed at once. flaky: throws in the first attempt of its block. stubborn: throws in every attempt. invalid: does not
 * fit the schema. poison: kills its process whenever it runs.
 */
export type Role = "good" | "bad" | "flaky" | "stubborn" | "invalid" | "poison";

export interface Input {
  readonly batch: string;
  readonly n: number;
  readonly role: Role;
}

/** rows: marked by time. careful: a mark after each row. commits: each row ends in the user's transaction. blocks: `handleBlock`, which ends in the user's transaction. */
export const KIND_NAMES = ["rows", "careful", "commits", "blocks"] as const;
export type KindName = (typeof KIND_NAMES)[number];

/** What its submitter does with a batch in the end: aborts it when all rows are in, or retries what failed when it has ended. */
export type Act = "none" | "abort" | "retry";

export interface Planned {
  readonly key: string;
  readonly act: Act;
  readonly kind: KindName;
  readonly rows: readonly Input[];
}

/** The file to which rows write that succeed. */
export const FILE = "out.txt";
const POISON_ROWS = 100;
/** The batch of a submitter, counted from 0, in which its poison row is. */
const POISON_AT = 0;

export function keyOf(submitter: number, number: number): string {
  return `${submitter}-${number}`;
}

/** `poison`: whether this submitter has one poison row. `small`: no batch has more than eight rows, so that there can be many. */
export function planOf(seed: number, key: string, poison: boolean, small = false): Planned {
  const [submitter, number] = key.split("-").map(Number) as [number, number];
  const chance = new Chance(seed * 1_000_003 + submitter * 7_919 + number);
  // One after the other, so that even a short run has each kind with many rows.
  const kind = KIND_NAMES[(number + submitter) % KIND_NAMES.length]!;
  const isPoisoned = poison && number === POISON_AT;
  const isLarge = !small && (number + submitter) % 5 === 1;
  const size = isPoisoned ? POISON_ROWS : isLarge ? 1_000 : [0, 1, 8, 8, 1][chance.whole(0, 4)]!;
  const poisonAt = isPoisoned ? chance.whole(0, size - 1) : -1;
  const rows = Array.from({ length: size }, (_, n): Input => ({
    batch: key,
    n,
    role: n === poisonAt ? "poison" : roleOf(isPoisoned ? "rows" : kind, chance),
  }));
  return { key, act: isPoisoned ? "none" : actOf(number + submitter), kind: isPoisoned ? "rows" : kind, rows };
}

/** By numbers that share no factor with those of the kinds and the sizes, so that each meets each. */
function actOf(number: number): Act {
  return number % 7 === 2 ? "abort" : number % 7 === 4 ? "retry" : "none";
}

/** The rounds that a batch ends. What fails in the first one fails in the second, too. */
export function roundsOf({ act, rows }: Planned): readonly number[] {
  return act === "retry" && rows.some(({ role }) => endOf(role) === "failed") ? [1, 2] : [1];
}

function roleOf(kind: KindName, chance: Chance): Role {
  const drawn = chance.whole(0, 99);
  if (drawn < 3) return "bad";
  if (drawn < 5) return "invalid";
  if (drawn < 6) return "flaky";
  // A throw of `handleBlock` is that of every row in the block.
  if (drawn < 7 && kind !== "blocks") return "stubborn";
  return "good";
}

export type End = "succeeded" | "failed" | "quarantined";

export function endOf(role: Role): End {
  if (role === "poison") return "quarantined";
  return role === "good" || role === "flaky" ? "succeeded" : "failed";
}

/** What a row writes. Some nothing, some more than others. */
export function textOf({ batch, n }: Input): string {
  return n % 5 === 4 ? "" : `${batch} ${n} ${"=".repeat(n % 23)}\n`;
}

/** The output file of a batch; null: nothing writes to it. */
export function fileOf({ rows }: Planned): string | null {
  const writers = rows.filter((row) => endOf(row.role) === "succeeded" && textOf(row) !== "");
  return writers.length === 0 ? null : writers.map(textOf).join("");
}
