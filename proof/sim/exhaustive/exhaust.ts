// Small scope, exhaustively: depth first through every order of the store calls of two workers with two jobs, and through a kill
// before and after each of them. A schedule is run again from its beginning with one choice changed; one that meets a state in which
// another has been is ended there, for they have the same futures.
import { createHash } from "node:crypto";
import type { Mutant } from "../mutants/mutant.ts";
import { demand } from "../oracle/violation.ts";
import { Watch } from "../oracle/watch.ts";
import { createTables } from "../workloads/tables.ts";
import { giveBack, takeBlank } from "../world/blank-database.ts";
import type { SimProcess } from "../world/process.ts";
import { Scope } from "./scope.ts";
import type { Waiting } from "./turnstile.ts";

export interface Exhausted {
  readonly schedules: number;
  readonly merged: number;
  readonly states: number;
  readonly calls: number;
  readonly kills: number;
  readonly takeovers: number;
  readonly violations: number;
  /** Of the first violation. */
  readonly story: readonly string[];
}

/** How long, in virtual ms, a schedule may take until all work is done. */
const LIMIT_MS = 60_000;

type Fate = "passes" | "dies before" | "dies after";

export interface ExhaustOptions {
  /** A bug on purpose. */
  readonly mutant?: Mutant;
  /** Ends at the first violation. */
  readonly untilFirst?: boolean;
}

/** Kills in one schedule. */
const KILLS = 1;

export async function exhaust({ mutant, untilFirst = false }: ExhaustOptions = {}): Promise<Exhausted> {
  const seen = new Set<string>();
  const sum = { schedules: 0, merged: 0, calls: 0, kills: 0, takeovers: 0, violations: 0 };
  let story: readonly string[] = [];
  const todo: number[][] = [[]];
  for (let choices = todo.pop(); choices; choices = todo.pop()) {
    const schedule = new Schedule(choices, seen, mutant ?? null);
    const end = await schedule.run();
    sum.schedules++;
    sum.calls += schedule.calls;
    if (end === "merged") sum.merged++;
    sum.takeovers += schedule.takeovers;
    sum.kills += schedule.killed;
    todo.push(...schedule.siblings);
    if (end === "broken" && sum.violations++ === 0) story = schedule.story;
    if (untilFirst && sum.violations > 0) break;
  }
  return { ...sum, states: seen.size, story };
}

class Schedule {
  readonly siblings: number[][] = [];
  calls = 0;
  killed = 0;
  takeovers = 0;
  story: readonly string[] = [];
  readonly #choices: readonly number[];
  readonly #seen: Set<string>;
  readonly #mutant: Mutant | null;
  readonly #taken: number[] = [];
  #starting = true;
  #mover: SimProcess | null = null;
  /** Killed as soon as its last call has been applied. */
  #dying: SimProcess | null = null;

  constructor(choices: readonly number[], seen: Set<string>, mutant: Mutant | null) {
    this.#choices = choices;
    this.#seen = seen;
    this.#mutant = mutant;
  }

  async run(): Promise<"done" | "merged" | "broken"> {
    const db = takeBlank("sound", (blank) => {
      createTables(blank);
      Watch.install(blank);
    });
    const scope = new Scope(db, this.#mutant);
    try {
      await scope.begin();
      const merged = await this.#explore(scope);
      if (!merged) scope.audit();
      this.takeovers = scope.tally.takeovers;
      return merged ? "merged" : "done";
    } catch (thrown) {
      const what = thrown instanceof Error && thrown.name !== "Violation" ? String(thrown.stack) : String(thrown);
      this.story = [...scope.story.last(), `choices ${this.#taken.join(" ")}: ${what}`];
      return "broken";
    } finally {
      for (const process of scope.processes) process.kill("ended");
      giveBack("sound", db);
    }
  }

  /** Returns whether another schedule has been here. */
  async #explore(scope: Scope): Promise<boolean> {
    const { turnstile, scheduler, oracle } = scope;
    for (;;) {
      await scope.settle(this.#mover);
      if (this.#dying) {
        this.#dying.kill("nemesis");
        this.#dying = null;
        continue;
      }
      const { waiting } = turnstile;
      if (waiting.length > 0) {
        if (this.#taken.length >= this.#choices.length && this.#been(scope.state())) return true;
        this.#choose(scope, waiting);
        continue;
      }
      if (turnstile.busy === 0 && oracle.drained && oracle.allRecovered) return false;
      const next = scheduler.nextAt();
      demand(next !== null && next < LIMIT_MS, () => `nothing moves, and there is work left`);
      scheduler.now = next;
    }
  }

  #been(state: string): boolean {
    const key = `${this.killed}${createHash("sha1").update(state).digest("base64")}`;
    const known = this.#seen.has(key);
    this.#seen.add(key);
    return known;
  }

  /** Takes the choice that is due, and notes the others for later schedules. */
  #choose(scope: Scope, waiting: readonly Waiting[]): void {
    // Until both workers are at their first claim the order is fixed; a kill may come at any of their calls.
    const first = waiting.find(({ method }) => method !== "turn");
    const open = this.killed === 0 && this.#starting && first ? [first] : waiting;
    if (open === waiting) this.#starting = false;
    const fates: readonly Fate[] = this.killed < KILLS ? ["passes", "dies before", "dies after"] : ["passes"];
    const at = this.#taken.length;
    const choice = this.#choices[at] ?? 0;
    if (at >= this.#choices.length)
      for (let other = open.length * fates.length - 1; other > 0; other--) this.siblings.push([...this.#taken, other]);
    this.#taken.push(choice);
    this.#do(scope, open[choice % open.length]!, fates[Math.floor(choice / open.length)]!);
  }

  #do(scope: Scope, call: Waiting, fate: Fate): void {
    this.calls++;
    this.#mover = call.process;
    if (fate === "passes") return scope.turnstile.let(call, true);
    this.killed++;
    scope.story.tell(call.process.name, `${call.method}: ${fate} it`);
    call.process.onDeath(() => scope.startWorker());
    if (fate === "dies before") call.process.kill("nemesis");
    else {
      scope.turnstile.let(call, false);
      this.#dying = call.process;
    }
  }
}
