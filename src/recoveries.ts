// Recovery as the engine offers it: at the open, by hand, and with what a supervisor knows. The work itself is core's.
import { ErrorCode, OutliveError, toStoredError } from "./core/errors.ts";
import { idSource } from "./core/ids.ts";
import { isProof, type Death, type Probe, type WorkerRow } from "./core/liveness.ts";
import { type Lost, Lookout, RESTORED } from "./core/lookout.ts";
import { isNoteworthy, NOTHING_CHECKED } from "./core/integrity.ts";
import { readOnlyError } from "./core/read-only.ts";
import { leftBehind, recoverDead, type RecoveryDeps, type RecoveryPass } from "./core/recovery.ts";
import type { Wiring } from "./engine.ts";
import { evidenceText } from "./evidence-text.ts";

/** The options of `engine.recover`. */
export interface RecoverOptions {
  /** Ends the pass between two transactions when it aborts; the next pass goes on. Default: none. */
  readonly signal?: AbortSignal;
  /** A backup was put back: everything that its rows call running is put back at once. Refused while a worker lives. Default false. */
  readonly restored?: boolean;
}

/** Longest evidence that a supervisor can add to a death. */
const MAX_EVIDENCE = 1_000;

/** A store that lets no write through for longer is blocked; less is ordinary work. */
const BLOCKED_MS = 500;

export class Recoveries {
  readonly #wiring: Wiring;
  /** Silence is judged from when this engine began to watch. */
  readonly #lookout: Lookout;

  constructor(wiring: Wiring) {
    this.#wiring = wiring;
    this.#lookout = new Lookout({
      clock: wiring.clock,
      liveness: wiring.backend.liveness,
      processState: wiring.processState,
      bootId: wiring.identity.bootId,
    });
  }

  /** One pass now. `own` is the worker of this process. */
  async pass(own: string | undefined, signal: AbortSignal | undefined): Promise<RecoveryPass> {
    this.#assertWritable();
    const dead = await this.#withoutSilenceOfABlockedStore(await this.findDead(own), own);
    return recoverDead(this.#deps(), dead, "recover", NOTHING_CHECKED, signal);
  }

  /**
   * After a backup was put back: the workers that its rows call alive are not, so all that they held is queued again at once, under a
   * new epoch. Refused while the lock of a worker is held, unless the store itself knows that it was restored.
   */
  async restored(signal: AbortSignal | undefined): Promise<RecoveryPass> {
    const { backend } = this.#wiring;
    this.#assertWritable();
    const isNew = await this.#noticeRestore();
    const fromBefore = (await backend.store.workers({})).filter((worker) => worker.restored);
    // A store that knows of its restore takes no write of a worker from before, whatever lock that holds. All others came after it.
    const isKnown = isNew || fromBefore.length > 0;
    const dead = this.#asRestored(isKnown ? fromBefore : await this.assertNobodyWorks("call it restored"));
    if (!isKnown) await backend.store.raiseEpoch();
    return recoverDead(this.#deps(), dead, "restored", NOTHING_CHECKED, signal);
  }

  async #noticeRestore(): Promise<boolean> {
    const why = (await this.#wiring.backend.store.noticeRestore?.()) ?? null;
    if (why !== null) this.#wiring.bus.emit("store.restored", { why });
    return why !== null;
  }

  /** What the rows of a backup say of workers is history. */
  #asRestored(workers: readonly WorkerRow[]): Lost[] {
    const detectedAt = this.#wiring.clock.now();
    const death = { how: "gone", lastSeenAliveAt: null, evidence: RESTORED, detectedAt } as const;
    return workers.map((worker) => ({ worker, death }));
  }

  /** The rows that are not over, if nobody's lock is held; an error that names who is alive otherwise. */
  async assertNobodyWorks(inOrderTo: string): Promise<readonly WorkerRow[]> {
    const { backend } = this.#wiring;
    const present = await backend.store.workers({});
    const probes = await this.#probe(present);
    const alive = present.filter((_, at) => probes[at] === "held");
    const [first] = alive;
    if (!first) return present;
    const named = alive.map(({ id, pid, host }) => `${id} (pid ${pid} on ${host})`).join(", ");
    throw new OutliveError(
      ErrorCode.wrongState,
      alive.length === 1 ? `Worker ${named} is alive on this store.` : `Workers are alive on this store: ${named}.`,
      `Stop ${alive.length === 1 ? "it" : "them"} to ${inOrderTo}, then try again. Nothing was changed.`,
      { worker: first.id, pid: first.pid, workers: alive.map(({ id }) => id) },
    );
  }

  /** The start-up recovery of `open`: nothing is accepted before it is finished. */
  async atOpen(): Promise<void> {
    const { backend } = this.#wiring;
    let well = false;
    try {
      await this.#atOpen();
      well = true;
    } finally {
      await backend.opened?.(well);
    }
  }

  async #atOpen(): Promise<void> {
    const { backend, clock } = this.#wiring;
    await this.#noticeRestore();
    // Workers from before a restore may hold their locks, but not in this store.
    const present = (await backend.store.workers({})).filter(({ restored }) => !restored);
    const probes = await this.#probe(present);
    const alone = !probes.includes("held");
    const findings = await backend.prepare(alone);
    if (alone) await backend.store.raiseEpoch();
    const deps = this.#deps();
    const recovery = deps.newId();
    if (isNoteworthy(findings)) {
      const completedAt = clock.now();
      const startedAt = completedAt - (findings.tookMs ?? 0);
      await backend.store.noteOpening?.({ recovery, startedAt, completedAt, findings });
    }
    await recoverDead(deps, await this.findDead(undefined), "open", findings, undefined, recovery);
    await backend.removeStrays().catch((thrown: unknown) =>
      this.#wiring.bus.emit("store.failed", {
        doing: "removing stray locks",
        error: toStoredError(thrown),
        retryInMs: 0,
      }),
    );
  }

  /** Also workers that are over but still hold jobs: an earlier recovery could not deal with those. */
  async findDead(own: string | undefined): Promise<{ worker: WorkerRow; death: Death }[]> {
    const { backend, settings, clock } = this.#wiring;
    const present = (await backend.store.workers({})).filter(({ id }) => id !== own);
    const dead = await this.#lookout.look(present, settings.times.heartbeatMs);
    return [...dead, ...leftBehind(await backend.store.workers({ which: "leftBehind" }), clock.now())];
  }

  /**
   * While no process could write, no worker could beat either, and their silence proves nothing. A worker notices that by its own
   * heartbeat; this watcher has none, so it tries to write before it believes in a silence.
   */
  async #withoutSilenceOfABlockedStore(dead: Lost[], own: string | undefined): Promise<Lost[]> {
    const { store } = this.#wiring.backend;
    if (store.untilWritable === undefined || dead.every(({ death }) => isProof(death.how))) return dead;
    const { clock } = this.#wiring;
    const askedMono = clock.mono();
    const written = await store.untilWritable().then(
      () => true,
      () => false,
    );
    // What was found may have ended while this waited: the rows and the kernel are asked again.
    if (written && clock.mono() - askedMono < BLOCKED_MS) return this.findDead(own);
    this.#lookout.restart();
    return dead.filter(({ death }) => isProof(death.how));
  }

  /** Core tells a store's refusal to recover and goes on; by hand it is the answer. */
  #assertWritable(): void {
    if (this.#wiring.backend.readOnly) throw readOnlyError("recover");
  }

  async #probe(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    const { liveness } = this.#wiring.backend;
    if (liveness.probeAll) return liveness.probeAll(workers);
    return Promise.all(workers.map((worker) => liveness.probe(worker)));
  }

  #deps(): RecoveryDeps {
    const { backend, clock, random, bus } = this.#wiring;
    return { store: backend.store, liveness: backend.liveness, clock, events: bus, newId: idSource(clock, random) };
  }

  /** By the worker's id only: a pid names another process in another namespace, and two machines' clocks are not compared. */
  async noteDeath(id: string, words: string, { agoMs = 0 }: { readonly agoMs?: number } = {}): Promise<boolean> {
    const what = evidenceText(words, MAX_EVIDENCE);
    const { backend, clock } = this.#wiring;
    // Ids that differ in their last digit only are as good as impossible; the store lists ids after one, not one.
    const from = await backend.store.workers({ which: "all", after: id.slice(0, -1), limit: 16 });
    const worker = from.find((row) => row.id === id);
    if (!worker) return false;
    // It left cleanly: what its process did afterwards is not the end of a worker.
    if (worker.state === "stopped") return true;
    this.#lookout.livedUntil(worker, clock.now() - agoMs);
    const { lastWord } = worker;
    if (!lastWord?.includes(what)) await backend.store.note(id, lastWord === null ? what : `${lastWord}; ${what}`);
    // Contact with it may have been lost before: its parent's word is the proof that was missing.
    if (worker.state === "gone") await backend.store.resolveLoss(id, "died");
    return true;
  }
}
