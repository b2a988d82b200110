// Many power losses: which scenario, at which moment, with which fate, all from one seed; then the judge. A scenario is recorded once
// and walked once, from its first moment to its last.
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { SeededRandom } from "../../sim/world/random.ts";
import { promisedBy } from "../scenarios/promised.ts";
import { DATABASE } from "../scenarios/scenario.ts";
import type { Word } from "../scenarios/word.ts";
import { judge, type Verdict } from "../verdict.ts";
import { Disk } from "./disk.ts";
import { type DrawnFate, drawFate, NOTHING_UNSYNCED } from "./fate.ts";
import { type Recording, type Start, writeFiles } from "./recording.ts";

export interface CampaignOptions {
  readonly recordings: readonly Recording[];
  readonly states: number;
  readonly seed: number;
  /** Where the states are written, each in its turn: a file system in memory makes it fast. */
  readonly root: string;
  /** A planted bug: the disk forgets to sync. */
  readonly ignoreSyncs?: boolean;
  /** Only the state of this number; its files, as the power loss left them, are put into `filesTo`. */
  readonly only?: { readonly number: number; readonly filesTo: string };
  readonly onState?: (state: State, done: number) => void;
}

/** One power loss and what the judge says of it. */
export interface State {
  readonly number: number;
  readonly scenario: string;
  /** How many moments of the recording had passed. */
  readonly moment: number;
  readonly fate: string;
  /** Whether anything was not synced at that moment. */
  readonly exposed: boolean;
  readonly promises: number;
  readonly verdict: Verdict;
}

export interface Tally {
  readonly states: number;
  /** States in which something was not synced: the others show nothing but that a sound file opens. */
  readonly exposed: number;
  /** States in which something acknowledged was missing; the next three likewise. */
  readonly lost: number;
  readonly corrupt: number;
  readonly committedTwice: number;
  readonly stuck: number;
  /** Answers of the engine that were checked, over all states. */
  readonly acknowledged: number;
  readonly scenarios: number;
}

interface Plan {
  readonly number: number;
  readonly moment: number;
  readonly fate: DrawnFate;
}

export async function runCampaign(options: CampaignOptions): Promise<Tally> {
  const { recordings, states, seed, root, onState, only } = options;
  const tally = { states: 0, exposed: 0, lost: 0, corrupt: 0, committedTwice: 0, stuck: 0, acknowledged: 0 };
  const folder = mkdtempSync(join(root, "outlive-power-loss-"));
  try {
    for (const [place, recording] of recordings.entries()) {
      const numbers = Array.from({ length: states }, (_, n) => n)
        .filter((n) => n % recordings.length === place)
        .filter((n) => only === undefined || n === only.number);
      const plans = numbers.map((number) => plan(recording, seed, number)).toSorted((a, b) => a.moment - b.moment);
      for await (const state of lose(recording, plans, folder, options)) {
        tally.states++;
        if (state.exposed) tally.exposed++;
        tally.acknowledged += state.promises;
        for (const kind of ["lost", "corrupt", "committedTwice", "stuck"] as const)
          if (state.verdict[kind].length > 0) tally[kind]++;
        onState?.(state, tally.states);
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return { ...tally, scenarios: recordings.length };
}

/** A run that looked at nothing is not clean. */
export function isClean(tally: Tally): boolean {
  return tally.states > 0 && tally.lost + tally.corrupt + tally.committedTwice + tally.stuck === 0;
}

/** Every fifth state is the worst case; every third moment is right behind an answer, where a promise is youngest. */
function plan({ scenario, moments }: Recording, seed: number, number: number): Plan {
  const random = new SeededRandom(`${seed}/${scenario}/${number}`);
  const answers = moments.flatMap((moment, at) => (moment.is === "word" ? [at + 1] : []));
  const moment = random.chance(1 / 3) && answers.length > 0 ? random.pick(answers) : random.below(moments.length + 1);
  return { number, moment, fate: random.chance(0.2) ? NOTHING_UNSYNCED : drawFate(random) };
}

/** One power loss alone: what it leaves, and what had been acknowledged by then. */
export function loseOnce(recording: Recording, seed: number, number: number): Start {
  const { moment, fate } = plan(recording, seed, number);
  const disk = new Disk(recording.base);
  const words: Word[] = [...recording.wordsBefore];
  for (const passed of recording.moments.slice(0, moment)) {
    if (passed.is === "word") words.push(passed.word);
    else disk.apply(passed.change);
  }
  return { files: filesAfter(disk, fate), words };
}

function filesAfter(disk: Disk, fate: DrawnFate): Map<string, Buffer> {
  const files = disk.lose(fate);
  const memory = fate.sharedMemory();
  return memory ? files.set(`${DATABASE}-shm`, memory) : files;
}

async function* lose(
  recording: Recording,
  plans: readonly Plan[],
  root: string,
  { ignoreSyncs = false, only }: Pick<CampaignOptions, "ignoreSyncs" | "only">,
): AsyncGenerator<State> {
  const disk = new Disk(recording.base, { ignoreSyncs });
  const words: Word[] = [...recording.wordsBefore];
  let passed = 0;
  for (const { number, moment, fate } of plans) {
    for (; passed < moment; passed++) {
      const next = recording.moments[passed]!;
      if (next.is === "word") words.push(next.word);
      else disk.apply(next.change);
    }
    const folder = join(root, String(number));
    const files = filesAfter(disk, fate);
    writeFiles(folder, files);
    if (only) writeFiles(only.filesTo, files);
    const promised = promisedBy(words);
    const verdict = await judge(folder, promised, { rebooted: true });
    rmSync(folder, { recursive: true, force: true });
    const { scenario } = recording;
    const exposed = disk.isExposed;
    yield { number, scenario, moment, fate: fate.text, exposed, promises: promised.count, verdict };
  }
}
