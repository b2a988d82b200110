// Child processes as their parent sees them: places that are refilled when a process dies. The fleet can kill, freeze
// and wake processes, and it records the instant of each; the engine handles the jobs. A role is a kind of process.
// Processes of the role "worker" send the engine's events to their parent; the others send only that they are running.
import { type ChildProcess, fork } from "node:child_process";
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import type { EngineEvent } from "../index.ts";

export type PlaceState = "starting" | "live" | "frozen" | "dead" | "stopped";

/** A place for one process after another. */
export interface Place<Role extends string = string> {
  readonly role: Role;
  readonly number: number;
  state: PlaceState;
  pid: number;
  /** Of a worker that has registered; null otherwise. */
  workerId: string | null;
  sinceAt: number;
  /** Processes of this place that ended unasked. */
  deaths: number;
}

/** One deliberate SIGKILL. */
export interface Kill<Role extends string = string> {
  readonly at: number;
  readonly role: Role;
  readonly pid: number;
  /** Null: it was not a worker, or was killed before it had registered. */
  readonly workerId: string | null;
  /** Every other process was killed with it: no process could detect the death before a new one had started. */
  readonly nobodyLeft: boolean;
  /** It had just begun to recover another worker. */
  readonly recovering: boolean;
  /** How many other places were empty or starting at that moment. */
  readonly missing: number;
}

/** A worker that was stopped with SIGSTOP. */
interface Freeze {
  readonly workerId: string | null;
  readonly at: number;
  /** When it was woken; Infinity: not yet. */
  until: number;
}

/** The end of a process, whatever ended it. */
export interface Exit<Role extends string = string> {
  readonly role: Role;
  readonly number: number;
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly killedByUs: boolean;
  readonly startedAt: number;
  /** It had reported something to its parent: it was at work. */
  readonly hadReported: boolean;
  /** The last of what it wrote to stderr. */
  readonly said: string;
}

/** What a process sends to its parent. */
export interface FromProcess {
  readonly event?: EngineEvent;
  /** The job inside whose commit it is. */
  readonly committing?: string;
}

interface FleetOptions<Role extends string = string> {
  readonly places: Readonly<Record<Role, number>>;
  /**
   * The program of a place with its arguments; `life` counts the processes of the place from 1. `launcher`: a command
   * that starts Node as its only child in a different environment, instead of exec'ing it. Such a place can be stopped,
   * but not killed or frozen.
   */
  programOf(
    place: Place<Role>,
    life: number,
  ): readonly [program: string, args: readonly string[], launcher?: readonly string[]];
  /** A folder in which the processes cache their compiled code for later ones. */
  readonly cache: string;
  readonly cwd?: string;
  /** For every process; undefined removes a variable. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly execArgv?: readonly string[];
  heard(place: Place<Role>, message: FromProcess): void;
  /** Whether a process may end in this way, although the fleet neither killed it nor asked it to stop. */
  mayEnd(exit: Exit<Role>): boolean;
  exited?(exit: Exit<Role>): void;
}

interface Member<Role extends string> extends Place<Role> {
  child: ChildProcess | null;
  /** It was started and is not known to be running yet. */
  booting: boolean;
  timer: NodeJS.Timeout | undefined;
  killedByUs: boolean;
  startedAt: number;
  hasReported: boolean;
  isLaunched: boolean;
  lives: number;
  lastWords: string;
}

/** The minimum time a place stays empty. */
const RESTART_MS = 50;
/**
 * After this long a start no longer delays other starts, whatever its outcome. A supervisor does not report when it is
 * running: it takes about this long.
 */
const BOOT_MS = 1_000;
/**
 * Starting all processes at once would slow down each of them. With this limit, the first is running soon after all of
 * them died.
 */
const MAX_BOOTING = Math.max(2, availableParallelism());

export class Fleet<Role extends string = string> {
  readonly kills: Kill<Role>[] = [];
  readonly freezes: Freeze[] = [];
  readonly exits: Exit<Role>[] = [];
  /** Processes that ended unexpectedly, one sentence each. */
  readonly unexpected: string[] = [];
  readonly #options: FleetOptions<Role>;
  readonly #members: Member<Role>[];
  readonly #placeOfPid = new Map<number, number>();
  #waiting: Member<Role>[] = [];
  /**
   * Roles whose places are no longer refilled. The others continue: remaining jobs need workers, whatever kills them.
   */
  readonly #leaving = new Set<Role>();

  constructor(options: FleetOptions<Role>) {
    this.#options = options;
    this.#members = (Object.entries(options.places) as [Role, number][]).flatMap(([role, count]) =>
      Array.from({ length: count }, (_, i) => ({
        role,
        number: i + 1,
        state: "dead" as const,
        pid: 0,
        workerId: null,
        sinceAt: Date.now(),
        deaths: 0,
        child: null,
        booting: false,
        timer: undefined,
        killedByUs: false,
        startedAt: 0,
        hasReported: false,
        isLaunched: false,
        lives: 0,
        lastWords: "",
      })),
    );
  }

  places(role?: Role): readonly Place<Role>[] {
    return role === undefined ? this.#members : this.#members.filter((member) => member.role === role);
  }

  /** The place of a worker, even if it is gone or died before it could report its id: the id contains the pid. */
  placeOf(workerId: string): number | undefined {
    return this.#placeOfPid.get(Number(/-(\d+)-[^-]+-[^-]+$/.exec(workerId)?.[1]));
  }

  /** How many places are empty or have a process that is not running yet. */
  missing(): number {
    return this.#members.filter(({ state, booting }) => state === "dead" || booting).length;
  }

  start(): void {
    for (const member of this.#members) this.#enqueue(member);
  }

  /** Returns how many processes it killed. */
  kill(places: readonly Place<Role>[], { nobodyLeft = false, recovering = false } = {}): number {
    const missing = this.missing();
    let count = 0;
    for (const place of places as readonly Member<Role>[]) {
      const at = Date.now();
      if (place.state === "dead" || !place.child?.kill("SIGKILL")) continue;
      place.killedByUs = true;
      this.#enter(place, "dead");
      const { role, pid, workerId } = place;
      this.kills.push({ at, role, pid, workerId, nobodyLeft, recovering, missing });
      count++;
    }
    return count;
  }

  freeze(place: Place<Role>): void {
    if (!(place as Member<Role>).child?.kill("SIGSTOP")) return;
    this.freezes.push({ workerId: place.workerId, at: Date.now(), until: Infinity });
    this.#enter(place, "frozen");
  }

  wake(place: Place<Role>): void {
    if (!(place as Member<Role>).child?.kill("SIGCONT") || place.state !== "frozen") return;
    for (const freeze of this.freezes)
      if (freeze.workerId === place.workerId && freeze.until === Infinity) freeze.until = Date.now();
    this.#enter(place, "live");
  }

  /** Lets these finish and leave; a process that has not left after `graceMs` is killed and reported. */
  async stop(roles: readonly Role[], graceMs: number): Promise<void> {
    for (const role of roles) this.#leaving.add(role);
    this.#waiting = this.#waiting.filter(({ role }) => !this.#leaving.has(role));
    const leaving = this.#members.filter(({ role }) => roles.includes(role));
    await Promise.all(leaving.map((member) => this.#leave(member, graceMs)));
  }

  /** Ends everything at once. Safe to call at any time, including during process exit. */
  destroy(): void {
    this.#waiting = [];
    for (const { child, timer, role } of this.#members) {
      this.#leaving.add(role);
      clearTimeout(timer);
      child?.kill("SIGKILL");
    }
  }

  async #leave(member: Member<Role>, graceMs: number): Promise<void> {
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
    // A launcher does not forward signals.
    for (const pid of member.isLaunched ? childrenOf(member.pid) : [member.pid]) process.kill(pid, "SIGTERM");
    await gone;
    clearTimeout(late);
  }

  /** Workers first: they recover the jobs. */
  #enqueue(member: Member<Role>): void {
    this.#waiting.push(member);
    this.#waiting.sort((a, b) => Number(b.role === "worker") - Number(a.role === "worker"));
    this.#fill();
  }

  #fill(): void {
    while (this.#waiting.length > 0 && this.#members.filter((m) => m.booting).length < MAX_BOOTING)
      this.#spawn(this.#waiting.shift()!);
  }

  #booted(member: Member<Role>): void {
    if (!member.booting) return;
    member.booting = false;
    clearTimeout(member.timer);
    this.#fill();
  }

  #spawn(member: Member<Role>): void {
    member.lives++;
    const { cache, cwd, env, execArgv = [] } = this.#options;
    const [program, args, launcher = []] = this.#options.programOf(member, member.lives);
    const [execPath, ...before] = [...launcher, process.execPath];
    const child = fork(program, args, {
      ...(cwd !== undefined && { cwd }),
      execPath,
      execArgv: [...before, "--disable-warning=ExperimentalWarning", ...execArgv],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
      env: { ...process.env, NODE_COMPILE_CACHE: cache, ...env },
    });
    const pid = child.pid ?? 0;
    Object.assign(member, {
      child,
      pid,
      workerId: null,
      killedByUs: false,
      startedAt: Date.now(),
      hasReported: false,
      lastWords: "",
      booting: true,
      isLaunched: launcher.length > 0,
    });
    this.#placeOfPid.set(pid, member.number);
    member.timer = setTimeout(() => this.#booted(member), BOOT_MS);
    // Only a worker reports when it is ready; the others count as running as soon as they start.
    this.#enter(member, member.role === "worker" ? "starting" : "live");
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      member.lastWords = (member.lastWords + text).slice(-2_000);
    });
    child.on("message", (message) => {
      if (member.child === child) this.#heard(member, message as FromProcess);
    });
    child.on("error", () => {}); // a message to a process that is just dying; `exit` reports what happened
    child.on("exit", (code, signal) => this.#exited(member, code, signal));
  }

  #heard(member: Member<Role>, message: FromProcess): void {
    this.#booted(member);
    member.hasReported = true;
    const { event } = message;
    if (event?.name === "worker.started") {
      member.workerId = event.worker;
      if (member.state === "starting") this.#enter(member, "live");
    }
    this.#options.heard(member, message);
  }

  #exited(member: Member<Role>, code: number | null, signal: NodeJS.Signals | null): void {
    const { role, number, pid, killedByUs, startedAt, hasReported: hadReported } = member;
    const isLeaving = this.#leaving.has(role);
    // A process that is asked to stop before it can listen is ended by the signal.
    const asked = isLeaving && (code === 0 || (signal === "SIGTERM" && member.workerId === null));
    const said = member.lastWords.trim();
    const exit: Exit<Role> = { role, number, pid, code, signal, killedByUs, startedAt, hadReported, said };
    this.exits.push(exit);
    if (!asked) member.deaths++;
    if (!killedByUs && !asked && !this.#options.mayEnd(exit))
      this.unexpected.push(
        `${nameOf(member)} ended unexpectedly: ${signal ?? `exit code ${code}`}${exit.said && `; it said: ${exit.said}`}`,
      );
    this.#enter(member, isLeaving ? "stopped" : "dead");
    this.#options.exited?.(exit);
    this.#booted(member);
    if (!isLeaving) member.timer = setTimeout(() => this.#enqueue(member), RESTART_MS);
  }

  #enter(place: Place<Role>, state: PlaceState): void {
    place.state = state;
    place.sinceAt = Date.now();
  }
}

/** By their pids in this process's own PID namespace. */
function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean).map(Number);
}

function nameOf({ role, number, pid }: Place): string {
  return `${role} ${number} (pid ${pid})`;
}

// The child's side: a worker process under the parent that forked it. It drains on SIGTERM, leaves Ctrl-C to the parent, and does not
// outlive it.

/** Runs `work` until it ends, on its own or because of `stop`, and then disconnects from the parent. */
export function runUnderParent(work: (stop: AbortSignal) => Promise<void>): void {
  const stop = new AbortController();
  const orphaned = (): void => {
    process.kill(0, "SIGCONT"); // a sibling that was frozen when the parent died would stay frozen
    process.exit(1);
  };
  process.on("SIGTERM", () => stop.abort());
  process.on("SIGINT", () => {});
  process.on("disconnect", orphaned);
  work(stop.signal).then(
    () => {
      process.off("disconnect", orphaned);
      process.disconnect();
    },
    (thrown: unknown) => {
      console.error(thrown);
      process.exit(1);
    },
  );
}

/** A message to a parent that is gone is lost: this process is about to end, too. */
export function tellParent(message: object): void {
  if (process.connected) process.send!(message);
}
