// What a run of the scoreboard found, as it is written to the results file and read by the document. Cells that are missing were not
// measured, and the document says so.
import type { Found } from "./adapter.ts";

export interface Results {
  readonly date: string;
  readonly machine: string;
  readonly nodes: string;
  readonly servers: readonly string[];
  /** What really was installed, by contender. */
  readonly versions: Readonly<Record<string, string>>;
  /** Contenders that could not be run, with the reason. */
  readonly absent: Readonly<Record<string, string>>;
  readonly cells: Readonly<Record<string, Cells>>;
  /** Experiments that broke, as "contender: experiment: reason". */
  readonly broken: readonly string[];
  /** Cells that are not of the same run, with the reason. */
  readonly apart?: readonly string[];
  /** What else a reader has to know of these results, in whole sentences. */
  readonly notes?: readonly string[];
}

/** What a page has to say of a run that measures only a part and takes the rest from an earlier one. */
export function playedAgain(
  earlier: Pick<Results, "apart" | "date" | "versions">,
  { experiments, contenders }: { readonly experiments: readonly string[]; readonly contenders: readonly string[] },
): readonly string[] {
  const commits = commitsOf(earlier.versions, contenders);
  const rest = [earlier.date, ...commits].join(", ");
  return [
    ...(earlier.apart ?? []),
    `${experiments.join(", ")} of ${contenders.join(", ")}, measured after the rest, which is of ${rest}`,
  ];
}

/** Who was not played in this part keeps the version that was: of Outlive another commit is checked out by now. */
export function versionsAfter(
  earlier: Results["versions"],
  installed: Results["versions"],
  played: readonly string[],
): Results["versions"] {
  const kept = Object.entries(earlier).filter(([id]) => !played.includes(id));
  return { ...installed, ...Object.fromEntries(kept) };
}

/** The commits of Outlive among these contenders: one, unless a part was played again. */
export function commitsOf(versions: Results["versions"], ids: readonly string[]): readonly string[] {
  const found = ids.map((id) => versions[id] ?? "").filter((version) => version.startsWith(COMMIT));
  return [...new Set(found)];
}

/** How the version of Outlive begins, which has no number of its own. */
export const COMMIT = "commit ";

export interface Cells {
  readonly killToRerun?: { readonly default?: readonly number[]; readonly fastest?: readonly number[] };
  readonly zombie?: Zombie;
  readonly poison?: Poison;
  readonly sigterm?: Sigterm;
  readonly kept?: readonly Kept[];
  readonly blocked?: { readonly default?: Blocked; readonly fastest?: Blocked };
  readonly speed?: Speed;
}

export interface Zombie {
  /** From the SIGSTOP to the start elsewhere. */
  readonly takenAfterMs: number;
  /** What became of its progress write: null if there is no such thing. */
  readonly note: string | null;
  readonly noteStored: boolean;
  /** Whether its completion ended the job of the new owner, who was still at work. */
  readonly completed: boolean;
  /** Whether the store was made to believe that the lock had expired, because no run can wait for it. */
  readonly pretended: boolean;
  readonly afterZombie: string;
  readonly afterOwner: string;
}

export interface Poison {
  readonly deaths: number;
  /** The innocents by their end; "open": neither done nor failed when the experiment was stopped. */
  readonly innocents: { readonly done: number; readonly failed: number; readonly open: number };
  readonly poison: string;
  readonly stopped: boolean;
  /** As for a zombie, after each death. */
  readonly pretended: boolean;
  readonly tookMs: number;
}

export interface Sigterm {
  readonly jobMs: number;
  /** null: it was still there when the experiment ended. */
  readonly exitedAfterMs: number | null;
  readonly ended: boolean;
  /** null: no other worker had started it when the experiment ended. */
  readonly rerunAfterMs: number | null;
  /** What the store said a second after the exit, in its own words and in ours. */
  readonly atExit: string;
  readonly stateAtExit: Found["state"];
  readonly watchedMs: number;
}

export interface Kept {
  readonly what: "client killed" | "server killed" | "server killed, as installed";
  readonly acknowledged: number;
  readonly missing: number;
}

export interface Blocked {
  readonly blockMs: number;
  readonly starts: number;
  /** From the first start to the second; null: there was none. */
  readonly secondAfterMs: number | null;
  readonly end: string;
}

export interface Speed {
  /** Jobs per second. */
  readonly drainDefault?: number;
  readonly drainThroughput?: number;
  readonly addsOneByOne?: number;
  readonly addsFiftyInFlight?: number;
  readonly pickupDefaultMs?: number;
  readonly pickupFastestMs?: number;
}
