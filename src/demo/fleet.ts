// The worker processes as their parent sees them: it starts them, fills the places of the dead after a moment, and has the
// means to kill, freeze and wake. It knows each instant of violence; what became of the jobs it leaves to the engine.
import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { EngineEvent } from "../index.ts";
import { RESTART_MS } from "./settings.ts";
import type { Scene } from "./vault.ts";
import type { FromWorker } from "./worker.ts";

export type PlaceState = "starting" | "live" | "frozen" | "dead" | "stopped";

/** One of the places for worker processes; processes come and go. */
export interface Place {
  readonly number: number;
  state: PlaceState;
  pid: number;
  /** The id of the process's worker; null until it has started. */
  workerId: string | null;
  sinceAt: number;
  deaths: number;
}

/** One SIGKILL by the nemesis. */
export interface Kill {
  readonly at: number;
  readonly place: number;
  readonly pid: number;
  /** Null: it was killed before it had registered. */
  readonly workerId: string | null;
}

export interface FleetListener {
  /** Something the engine said in a worker process. */
  heard(place: Place, event: EngineEvent): void;
  /** A process died that the nemesis did not kill, by SIGKILL: the poison job's work. */
  poisoned(place: Place): void;
}

interface Member extends Place {
  child: ChildProcess | null;
  restart: NodeJS.Timeout | undefined;
  killedByUs: boolean;
  lastWords: string;
}

// Sources are run as .ts, the package as .js; tsc rewrites imports but not this.
const WORKER = fileURLToPath(new URL(`./worker${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url));

export class Fleet {
  readonly kills: Kill[] = [];
  /** Processes that ended in a way that nobody intended, one sentence each. */
  readonly unexpected: string[] = [];
  /** Deaths by the poison job. */
  poisoned = 0;
  readonly #members: Member[];
  readonly #scene: Scene;
  readonly #cache: string;
  readonly #listener: FleetListener;
  readonly #placeOfPid = new Map<number, number>();
  #stopping = false;

  /** `cache`: a folder in which the processes keep their compiled code for the next ones. */
  constructor(size: number, scene: Scene, cache: string, listener: FleetListener) {
    this.#scene = scene;
    this.#cache = cache;
    this.#listener = listener;
    this.#members = Array.from({ length: size }, (_, i) => ({
      number: i + 1,
      state: "dead",
      pid: 0,
      workerId: null,
      sinceAt: Date.now(),
      deaths: 0,
      child: null,
      restart: undefined,
      killedByUs: false,
      lastWords: "",
    }));
  }

  get places(): readonly Place[] {
    return this.#members;
  }

  start(): void {
    for (const member of this.#members) this.#spawn(member);
  }

  /** The place of a worker, also of one that is gone, or that died before it could say who it was: its id has the pid. */
  placeOf(workerId: string): number | undefined {
    const pid = /-(\d+)-[^-]+-[^-]+$/.exec(workerId)?.[1];
    return this.#placeOfPid.get(Number(pid));
  }

  kill(places: readonly Place[]): Kill[] {
    const kills = places.flatMap(({ number }) => {
      const member = this.#member(number);
      const at = Date.now();
      if (!member.child?.kill("SIGKILL")) return [];
      member.killedByUs = true;
      this.#enter(member, "dead");
      return [{ at, place: number, pid: member.pid, workerId: member.workerId }];
    });
    this.kills.push(...kills);
    return kills;
  }

  freeze({ number }: Place): void {
    const member = this.#member(number);
    if (member.child?.kill("SIGSTOP")) this.#enter(member, "frozen");
  }

  wake({ number }: Place): void {
    const member = this.#member(number);
    if (member.child?.kill("SIGCONT") && member.state === "frozen") this.#enter(member, "live");
  }

  /** Lets them finish and leave; what has not left after `graceMs` is killed and reported. */
  async stop(graceMs: number): Promise<void> {
    this.#stopping = true;
    await Promise.all(
      this.#members.map(async (member) => {
        clearTimeout(member.restart);
        const { child } = member;
        if (!child || child.exitCode !== null || child.signalCode !== null) return;
        const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
        const late = setTimeout(() => {
          this.unexpected.push(`worker ${member.number} (pid ${member.pid}) did not stop within ${graceMs} ms`);
          member.killedByUs = true;
          child.kill("SIGKILL");
        }, graceMs);
        child.kill("SIGTERM");
        await gone;
        clearTimeout(late);
      }),
    );
  }

  /** The end of everything, at once. Safe to call at any time, also while the process exits. */
  destroy(): void {
    this.#stopping = true;
    for (const { child, restart } of this.#members) {
      clearTimeout(restart);
      child?.kill("SIGKILL");
    }
  }

  #spawn(member: Member): void {
    const child = fork(WORKER, [JSON.stringify(this.#scene)], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
      env: { ...process.env, NODE_COMPILE_CACHE: this.#cache },
    });
    member.child = child;
    member.pid = child.pid ?? 0;
    this.#placeOfPid.set(member.pid, member.number);
    member.workerId = null;
    member.killedByUs = false;
    member.lastWords = "";
    this.#enter(member, "starting");
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      member.lastWords = (member.lastWords + text).slice(-2_000);
    });
    child.on("message", (message) => this.#heard(member, (message as FromWorker).event));
    child.on("error", () => {}); // a message to a process that is just dying; `exit` says what happened
    child.on("exit", (code, signal) => this.#exited(member, code, signal));
  }

  #heard(member: Member, event: EngineEvent): void {
    if (event.name === "worker.started") {
      member.workerId = event.worker;
      if (member.state === "starting") this.#enter(member, "live");
    }
    this.#listener.heard(member, event);
  }

  #exited(member: Member, code: number | null, signal: NodeJS.Signals | null): void {
    const poisoned = signal === "SIGKILL" && !member.killedByUs;
    // One that is told to stop before it can listen is ended by the signal.
    const asked = this.#stopping && (code === 0 || (signal === "SIGTERM" && member.workerId === null));
    if (poisoned) this.poisoned++;
    else if (!member.killedByUs && !asked) {
      const how = signal ?? `exit code ${code}`;
      const said = member.lastWords.trim();
      this.unexpected.push(
        `worker ${member.number} (pid ${member.pid}) ended by itself: ${how}${said && `; it said: ${said}`}`,
      );
    }
    if (!asked) member.deaths++;
    this.#enter(member, this.#stopping ? "stopped" : "dead");
    if (poisoned) this.#listener.poisoned(member);
    if (!this.#stopping) member.restart = setTimeout(() => this.#spawn(member), RESTART_MS);
  }

  #enter(member: Member, state: PlaceState): void {
    member.state = state;
    member.sinceAt = Date.now();
  }

  #member(number: number): Member {
    return this.#members[number - 1]!;
  }
}
