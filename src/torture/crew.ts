// The processes of the rig as their parent sees them: places that are filled again when somebody dies. It can kill, freeze and wake, and it
// knows the instant of each; what became of the jobs it leaves to the engine.
import { type ChildProcess, fork } from "node:child_process";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import type { EngineEvent } from "../index.ts";
import { CONCURRENCY, HEAP_MB, HEARTBEAT, LEASE, SUPERVISED } from "./settings.ts";

export type Role = "worker" | "producer" | "supervisor";
export type SeatState = "starting" | "live" | "frozen" | "dead" | "stopped";

/** A place for one process after the other. */
export interface Seat {
  readonly role: Role;
  readonly number: number;
  state: SeatState;
  pid: number;
  /** Of a worker that has registered; null otherwise. */
  workerId: string | null;
  sinceAt: number;
}

/** One SIGKILL by the nemesis. */
export interface Kill {
  readonly at: number;
  readonly role: Role;
  readonly pid: number;
  /** Null: it was no worker, or was killed before it had registered. */
  readonly workerId: string | null;
  /** Everybody else was killed with it: nobody could see it before somebody had started again. */
  readonly nobodyLeft: boolean;
  /** It had just begun to recover somebody else. */
  readonly recovering: boolean;
  /** How many places were empty or starting then, this one not counted. */
  readonly missing: number;
}

/** A worker that was stopped with SIGSTOP. */
export interface Freeze {
  readonly workerId: string | null;
  readonly at: number;
  /** When it was woken; Infinity: not yet. */
  until: number;
}

/** The end of a process, whatever ended it. */
export interface Exit {
  readonly role: Role;
  readonly pid: number;
  readonly code: number | null;
  readonly killedByUs: boolean;
  /** The last of what it wrote to stderr. */
  readonly said: string;
}

/** How the worker of one place is started, if not as the others. */
export interface WorkerStart {
  readonly url: string;
  /** A program that takes the address of the store; default: the worker of this folder. */
  readonly program?: string;
}

/** What a process tells its parent. */
interface Message {
  readonly event?: EngineEvent;
  /** The job inside whose commit it is. */
  readonly committing?: string;
}

interface Member extends Seat {
  child: ChildProcess | null;
  /** Has been started and is not at work yet, as far as one can see. */
  booting: boolean;
  timer: NodeJS.Timeout | undefined;
  killedByUs: boolean;
  lives: number;
  lastWords: string;
}

export interface CrewOptions {
  readonly url: string;
  /** On PostgreSQL; null: the store is a file. */
  readonly schema: string | null;
  readonly seed: number;
  readonly seats: Readonly<Record<Role, number>>;
  /** Where the processes write their histories. */
  readonly histories: string;
  /** A folder in which the processes keep their compiled code for the next ones. */
  readonly cache: string;
  /** The program of the command line, for the supervisor. */
  readonly cli: string;
  /** Default: all workers open `url`. */
  readonly workerAt?: (number: number) => WorkerStart;
  /** For every process. */
  readonly env?: Readonly<Record<string, string>>;
  heard(seat: Seat, event: EngineEvent): void;
  /** A worker is inside a long commit of this job. */
  committing?(seat: Seat, job: string): void;
  /** False while the store is broken on purpose, and a while after: who starts then says that it can't, and ends. */
  storeIsWell(): boolean;
}

/** How long a place stays empty at the least. */
const RESTART_MS = 50;
/** After this a start holds up nobody else, whatever became of it. Nobody tells when a supervisor is at work: it takes about this. */
const BOOT_MS = 1_000;
/** Starting all at once would make each of them as slow as all of them: after the death of everybody the first is soon at work. */
const MOST_BOOTING = Math.max(2, availableParallelism());
// Sources are run as .ts, the package as .js; tsc rewrites imports but not these.
const EXTENSION = import.meta.url.endsWith(".ts") ? ".ts" : ".js";
const file = (name: string): string => fileURLToPath(new URL(`${name}${EXTENSION}`, import.meta.url));

export class Crew {
  readonly kills: Kill[] = [];
  readonly freezes: Freeze[] = [];
  readonly exits: Exit[] = [];
  /** Processes that ended in a way that nobody intended, one sentence each. */
  readonly unexpected: string[] = [];
  readonly #options: CrewOptions;
  readonly #members: Member[];
  #waiting: Member[] = [];
  /** Roles whose places are not filled again. The others go on: work that is left needs workers, whatever kills them. */
  readonly #leaving = new Set<Role>();

  constructor(options: CrewOptions) {
    this.#options = options;
    this.#members = Object.entries(options.seats).flatMap(([role, count]) =>
      Array.from({ length: count }, (_, i) => ({
        role: role as Role,
        number: i + 1,
        state: "dead" as const,
        pid: 0,
        workerId: null,
        sinceAt: Date.now(),
        child: null,
        booting: false,
        timer: undefined,
        killedByUs: false,
        lives: 0,
        lastWords: "",
      })),
    );
  }

  seats(role?: Role): readonly Seat[] {
    return role === undefined ? this.#members : this.#members.filter((member) => member.role === role);
  }

  /** Places that are empty, or whose process is not at work yet. */
  missing(): number {
    return this.#members.filter(({ state, booting }) => state === "dead" || booting).length;
  }

  start(): void {
    for (const member of this.#members) this.#enqueue(member);
  }

  kill(seats: readonly Seat[], { nobodyLeft = false, recovering = false } = {}): number {
    const missing = this.missing();
    let count = 0;
    for (const seat of seats as readonly Member[]) {
      const at = Date.now();
      if (seat.state === "dead" || !seat.child?.kill("SIGKILL")) continue;
      seat.killedByUs = true;
      this.#enter(seat, "dead");
      const { role, pid, workerId } = seat;
      this.kills.push({ at, role, pid, workerId, nobodyLeft, recovering, missing });
      count++;
    }
    return count;
  }

  freeze(seat: Seat): void {
    if (!(seat as Member).child?.kill("SIGSTOP")) return;
    this.freezes.push({ workerId: seat.workerId, at: Date.now(), until: Infinity });
    this.#enter(seat as Member, "frozen");
  }

  wake(seat: Seat): void {
    if (!(seat as Member).child?.kill("SIGCONT") || seat.state !== "frozen") return;
    for (const freeze of this.freezes)
      if (freeze.workerId === seat.workerId && freeze.until === Infinity) freeze.until = Date.now();
    this.#enter(seat as Member, "live");
  }

  /** Lets these finish and leave; what has not left after `graceMs` is killed and reported. */
  async stop(roles: readonly Role[], graceMs: number): Promise<void> {
    for (const role of roles) this.#leaving.add(role);
    this.#waiting = this.#waiting.filter(({ role }) => !this.#leaving.has(role));
    const leaving = this.#members.filter(({ role }) => roles.includes(role));
    await Promise.all(leaving.map((member) => this.#leave(member, graceMs)));
  }

  /** The end of everything, at once. Safe to call at any time, also while the process exits. */
  destroy(): void {
    this.#waiting = [];
    for (const { child, timer, role } of this.#members) {
      this.#leaving.add(role);
      clearTimeout(timer);
      child?.kill("SIGKILL");
    }
  }

  async #leave(member: Member, graceMs: number): Promise<void> {
    clearTimeout(member.timer);
    const { child } = member;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    const late = setTimeout(() => {
      this.unexpected.push(`${nameOf(member)} did not stop within ${graceMs} ms`);
      member.killedByUs = true;
      child.kill("SIGKILL");
    }, graceMs);
    child.kill("SIGCONT");
    child.kill("SIGTERM");
    await gone;
    clearTimeout(late);
  }

  /** Workers first: they bring the work back. */
  #enqueue(member: Member): void {
    this.#waiting.push(member);
    this.#waiting.sort((a, b) => Number(b.role === "worker") - Number(a.role === "worker"));
    this.#fill();
  }

  #fill(): void {
    while (this.#waiting.length > 0 && this.#members.filter((m) => m.booting).length < MOST_BOOTING)
      this.#spawn(this.#waiting.shift()!);
  }

  #booted(member: Member): void {
    if (!member.booting) return;
    member.booting = false;
    clearTimeout(member.timer);
    this.#fill();
  }

  #spawn(member: Member): void {
    member.lives++;
    const { schema, histories, cache, env } = this.#options;
    const child = fork(...programOf(member, this.#options), {
      cwd: histories,
      execArgv: ["--disable-warning=ExperimentalWarning", `--max-old-space-size=${HEAP_MB}`],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
      env: {
        ...process.env,
        NODE_COMPILE_CACHE: cache,
        OUTLIVE_TORTURE_HISTORY: histories,
        // The user's own must reach nobody, also if the store is a file.
        OUTLIVE_POSTGRES_SCHEMA: schema ?? undefined,
        OUTLIVE_HEARTBEAT_INTERVAL: HEARTBEAT,
        OUTLIVE_HEARTBEAT_LEASE: LEASE,
        ...env,
      },
    });
    Object.assign(member, {
      child,
      pid: child.pid ?? 0,
      workerId: null,
      killedByUs: false,
      lastWords: "",
      booting: true,
    });
    member.timer = setTimeout(() => this.#booted(member), BOOT_MS);
    // Only a worker tells when it is ready; a producer and a supervisor are at work as soon as they run.
    this.#enter(member, member.role === "worker" ? "starting" : "live");
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      member.lastWords = (member.lastWords + text).slice(-2_000);
    });
    child.on("message", (message) => {
      if (member.child === child) this.#heard(member, message as Message);
    });
    child.on("error", () => {}); // a message to a process that is just dying; `exit` says what happened
    child.on("exit", (code, signal) => this.#exited(member, code, signal));
  }

  #heard(member: Member, { event, committing }: Message): void {
    this.#booted(member);
    if (committing !== undefined) this.#options.committing?.(member, committing);
    if (!event) return;
    if (event.name === "worker.started") {
      member.workerId = event.worker;
      if (member.state === "starting") this.#enter(member, "live");
    }
    this.#options.heard(member, event);
  }

  #exited(member: Member, code: number | null, signal: NodeJS.Signals | null): void {
    const isLeaving = this.#leaving.has(member.role);
    const asked = isLeaving && (code === 0 || signal === "SIGTERM");
    const excused = code === 1 && !this.#options.storeIsWell();
    const { role, pid, killedByUs } = member;
    const said = member.lastWords.trim();
    this.exits.push({ role, pid, code, killedByUs, said });
    if (!killedByUs && !asked && !excused && !byItsJob(member, code, signal)) {
      this.unexpected.push(
        `${nameOf(member)} ended by itself: ${signal ?? `exit code ${code}`}${said && `; it said: ${said}`}`,
      );
    }
    this.#enter(member, isLeaving ? "stopped" : "dead");
    this.#booted(member);
    if (!isLeaving) member.timer = setTimeout(() => this.#enqueue(member), RESTART_MS);
  }

  #enter(member: Member, state: SeatState): void {
    member.state = state;
    member.sinceAt = Date.now();
  }
}

function programOf({ role, number, lives }: Member, { url, seed, cli, workerAt }: CrewOptions): [string, string[]] {
  switch (role) {
    case "worker": {
      const { url: own, program = file("./worker") } = workerAt?.(number) ?? { url };
      return [program, [own]];
    }
    case "producer":
      return [file("./producer"), [url, `p${number}.${lives}`, String(seed + 1_000 * lives + number)]];
    case "supervisor":
      return [
        cli,
        ["work", file("./jobs"), "--store", url, "--processes", `${SUPERVISED}`, "--concurrency", `${CONCURRENCY}`],
      ];
  }
}

/** A poison job kills with SIGKILL; one that takes all memory ends with SIGABRT, or with 134 where a shell stood between. */
function byItsJob({ role }: Member, code: number | null, signal: NodeJS.Signals | null): boolean {
  return role === "worker" && (signal === "SIGKILL" || signal === "SIGABRT" || signal === "SIGTRAP" || code === 134);
}

function nameOf({ role, number, pid }: Seat): string {
  return `${role} ${number} (pid ${pid})`;
}
