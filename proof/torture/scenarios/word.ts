// What a recorded program says of itself, one JSON line each, into a file outside the database: `adding` and `purging` before it asks
// for something, all the others when the engine has answered. The lines are calls in the same trace as the writes and syncs, so
// that the trace says which answer came before which sync.
import { openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

export type Word =
  | { readonly said: "opened" }
  /** Asked for in one call of one transaction: all of them or none. */
  | { readonly said: "adding"; readonly ids: readonly string[] }
  | { readonly said: "enqueued"; readonly ids: readonly string[] }
  /** A row of the user's and a job in one transaction. */
  | { readonly said: "ordered"; readonly id: string }
  | { readonly said: "claimed"; readonly id: string; readonly epoch: number; readonly fence: number }
  | { readonly said: "step"; readonly id: string; readonly name: string }
  | { readonly said: "committed"; readonly id: string }
  | { readonly said: "settled"; readonly id: string }
  | { readonly said: "cancelled"; readonly id: string }
  | { readonly said: "recovered"; readonly incident: string }
  /** From here on retention may take what has ended. */
  | { readonly said: "purging" };

export type Say = (word: Word) => void;

/** The file of the words inside a recorded folder. */
export const WORDS_FILE = "words";

/** Says into the folder's file, by one write call per word: appended, so that several processes may speak. */
export function sayInto(folder: string): Say {
  const fd = openSync(join(folder, WORDS_FILE), "a");
  return (word) => void writeSync(fd, `${JSON.stringify(word)}\n`);
}

/** Earlier lines, put where `sayInto` goes on. */
export function writeWords(folder: string, words: readonly Word[]): void {
  writeFileSync(join(folder, WORDS_FILE), words.map((word) => `${JSON.stringify(word)}\n`).join(""));
}

export function parseWords(text: string): Word[] {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Word);
}
