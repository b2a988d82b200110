// A scenario played once by real processes on a real file, with every call that changed the file or made it durable, and every word
// of the program, in their order.
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import type { Scenario } from "../scenarios/scenario.ts";
import type { Durability } from "../scenarios/stage.ts";
import { parseWords, type Word, WORDS_FILE, writeWords } from "../scenarios/word.ts";
import { assertPlayed, FILE_CALLS, play } from "../strace.ts";
import { type Call, parseTrace, textsOf } from "../trace.ts";
import { Disk, type DiskChange } from "./disk.ts";

export type Moment =
  | { readonly is: "change"; readonly change: DiskChange }
  | { readonly is: "word"; readonly word: Word };

export interface Recording {
  readonly scenario: string;
  /** What was there before the first moment, durable. */
  readonly base: ReadonlyMap<string, Buffer>;
  readonly wordsBefore: readonly Word[];
  readonly moments: readonly Moment[];
}

/** What a process left and the answers that it had got, for a recording that goes on from there. */
export interface Start {
  readonly files: ReadonlyMap<string, Buffer>;
  readonly words: readonly Word[];
}

/** Only the calls that matter, at little cost; files by name; every byte. */
const WATCHING = [
  "-f",
  "--seccomp-bpf",
  "-y",
  "-xx",
  "-s",
  String(1 << 24),
  "-e",
  `trace=${FILE_CALLS}`,
  "-e",
  "signal=none",
];

/** Where it was played: the traces name that folder, and a recording may be moved. */
const PLACE_FILE = "place";

/** How often a scenario is played until its trace is whole. */
const TRIES = 3;

/**
 * Plays the scenario in a folder of its own under `parent`, and leaves there what a replay needs. A thread that is killed inside a
 * write may have written without an answer in the trace: such a recording is thrown away and made again.
 */
export async function record(
  scenario: Scenario,
  durability: Durability,
  parent: string,
  start: Start = { files: new Map(), words: [] },
): Promise<Recording> {
  const folder = join(parent, scenario.name);
  for (let tries = 1; ; tries++) {
    rmSync(folder, { recursive: true, force: true });
    await playInto(folder, scenario, durability, start);
    try {
      return load(folder, scenario.name);
    } catch (thrown) {
      if (!(thrown instanceof NotWhole) || tries === TRIES) throw thrown;
    }
  }
}

async function playInto(folder: string, scenario: Scenario, durability: Durability, start: Start): Promise<void> {
  writeFiles(join(folder, "live"), start.files);
  writeWords(join(folder, "live"), start.words);
  // strace names files as the kernel does.
  const live = realpathSync(join(folder, "live"));
  writeFileSync(join(folder, PLACE_FILE), live);
  for (const act of scenario.before) {
    const given = { act, folder: live, durability };
    assertPlayed(given, await play(given));
  }
  cpSync(live, join(folder, "base"), { recursive: true });
  for (const [turn, act] of scenario.watched.entries()) {
    const given = { act, folder: live, durability };
    assertPlayed(given, await play(given, [...WATCHING, "-o", join(folder, `${turn}.trace`)]));
  }
}

/** Reads what `record` left in a folder. Throws unless replaying all of it gives the very files that the processes left. */
export function load(folder: string, scenario: string): Recording {
  const live = readFileSync(join(folder, PLACE_FILE), "utf8");
  const base = filesOf(join(folder, "base"));
  const wordsBefore = wordsOf(join(folder, "base"));
  const moments: Moment[] = [];
  const disk = new Disk(base);
  for (let turn = 0; existsSync(join(folder, `${turn}.trace`)); turn++) {
    // Places go on from one trace to the next, so that no sync covers what came after it.
    const from = turn * 1e9;
    for (const call of parseTrace(readFileSync(join(folder, `${turn}.trace`), "latin1"))) {
      for (const moment of momentsOf({ ...call, began: call.began + from, ended: call.ended + from }, live, disk)) {
        if (moment.is === "change") disk.apply(moment.change);
        moments.push(moment);
      }
    }
  }
  assertSame(scenario, disk.everything(), filesOf(join(folder, "live")));
  return { scenario, base, wordsBefore, moments };
}

/** A recording in a temporary folder that is removed again. */
export async function recordOnce(scenario: Scenario, durability: Durability, root: string): Promise<Recording> {
  const parent = mkdtempSync(join(root, "outlive-recording-"));
  try {
    return await record(scenario, durability, parent);
  } finally {
    rmSync(parent, { recursive: true, force: true });
  }
}

/** Shared memory does not outlive the machine, nor does a process that waits for a start-up and its verdict; the words are the rig's own. */
function isKept(path: string): boolean {
  return (
    path !== WORDS_FILE &&
    !path.endsWith("-shm") &&
    !/\.outlive\/(start-up\.json(\.new)?|mark\.json(\.\d+)?)$/.test(path)
  );
}

function momentsOf(call: Call, live: string, disk: Disk): Moment[] {
  if (call.result < 0) return [];
  const inside = (path: string | undefined): string | undefined => {
    if (path === undefined || (path !== live && !path.startsWith(`${live}/`))) return undefined;
    return relative(live, path);
  };
  const change = (made: DiskChange): Moment[] => [{ is: "change", change: made }];
  const { name, ended: at, began } = call;
  const file = inside(call.file);
  switch (name) {
    case "openat": {
      const path = inside(textsOf(call).at(-1)!.toString());
      if (path === undefined || !isKept(path)) return [];
      if (call.args.includes("O_CREAT") && !disk.has(path)) return change({ is: "create", path });
      return call.args.includes("O_TRUNC") ? change({ is: "truncate", path, size: 0, at }) : [];
    }
    case "unlink":
    case "unlinkat": {
      const path = inside(textsOf(call).at(-1)!.toString());
      return path === undefined || !isKept(path) ? [] : change({ is: "remove", path });
    }
    case "write":
      if (file === WORDS_FILE)
        return parseWords(textsOf(call)[0]!.toString()).map((word) => ({ is: "word", word }) as const);
      break;
    case "pwrite64": {
      if (file === undefined || !isKept(file)) return [];
      const offset = Number(/, (\d+)$/.exec(call.args)![1]);
      return change({ is: "write", path: file, offset, bytes: textsOf(call)[0]!.subarray(0, call.result), at });
    }
    case "ftruncate":
      if (file === undefined || !isKept(file)) return [];
      return change({ is: "truncate", path: file, size: Number(/, (\d+)$/.exec(call.args)![1]), at });
    case "fsync":
    case "fdatasync":
      if (file === undefined || !isKept(file)) return [];
      return change(disk.has(file) ? { is: "sync", path: file, since: began } : { is: "sync-names", folder: file });
  }
  // Whatever else touches the folder would be overlooked by the model.
  const touched = [file, ...textsOf(call).map((text) => inside(text.toString()))];
  const unknown = touched.find((path) => path !== undefined && isKept(path));
  if (unknown !== undefined) throw new Error(`the rig does not know what ${name} does to ${unknown}`);
  return [];
}

export function writeFiles(folder: string, files: ReadonlyMap<string, Buffer>): void {
  mkdirSync(folder, { recursive: true });
  for (const [path, bytes] of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), bytes);
  }
}

function filesOf(folder: string): Map<string, Buffer> {
  const files = new Map<string, Buffer>();
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const path = relative(folder, join(entry.parentPath, entry.name));
    if (entry.isFile() && isKept(path)) files.set(path, readFileSync(join(folder, path)));
  }
  return files;
}

function wordsOf(folder: string): Word[] {
  const path = join(folder, WORDS_FILE);
  return existsSync(path) ? parseWords(readFileSync(path, "utf8")) : [];
}

/** The trace and the files disagree. */
class NotWhole extends Error {}

function assertSame(scenario: string, model: ReadonlyMap<string, Buffer>, real: ReadonlyMap<string, Buffer>): void {
  const differ = [...new Set([...model.keys(), ...real.keys()])].filter((path) => {
    const [ours, theirs] = [model.get(path), real.get(path)];
    return ours === undefined || theirs === undefined || !ours.equals(theirs);
  });
  if (differ.length > 0)
    throw new NotWhole(`the recorded calls of ${scenario} do not make the files that are there: ${differ.join(", ")}`);
}
