// What the rig for collections sends: the same bytes for the same part, whichever process sends them and however often.
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";

export const KIND = "torture";
/** The queue of notifications. */
export const RESULTS = "torture.results";

const BYTES = 20_000;

export function idOf(n: number): string {
  return `c${String(n).padStart(5, "0")}`;
}

export function contentOf(n: number, ordinal: number): Buffer {
  const seed = createHash("sha256").update(`${n} ${ordinal}`).digest();
  return Buffer.alloc(BYTES, seed);
}

export function hashOf(n: number, ordinal: number): string {
  return createHash("sha256").update(contentOf(n, ordinal)).digest("hex");
}

/** How many collections the producer has noted in its file as confirmed by the broker: those from the first on. */
export function confirmedIn(file: string): number {
  return existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean).length : 0;
}
