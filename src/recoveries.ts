// Recovery as the engine offers it: at the open, by hand, and with what a supervisor knows. The work itself is core's.
import { ErrorCode, OutliveError, toStoredError } from "./core/errors.ts";
import { idSource } from "./core/ids.ts";
import type { Death, Probe, WorkerRow } from "./core/liveness.ts";
import { Lookout } from "./core/lookout.ts";
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
    return recoverDead(this.#deps(), await this.findDead(own), "recover", NOTHING_CHECKED, signal);
  }

  /**
   * After a backup was put back: whoever the old rows call alive is not, so all that they held goes back at once, under a new epoch.
   * Refused while anybody's lock is held.
   */
  async restored(signal: AbortSignal | undefined): Promise<RecoveryPass> {
    const { backend, clock } = this.#wiring;
    this.#assertWritable();
    const present = await this.assertNobodyWorks("call it restored");
    await backend.store.raiseEpoch();
    const death = { how: "gone", lastSeenAliveAt: null, evidence: "the store was restored from a backup" } as const;
    const dead = present.map((worker) => ({ worker, death: { ...death, detectedAt: clock.now() } }));
    return recoverDead(this.#deps(), dead, "restored", NOTHING_CHECKED, signal);
  }

  /** The rows that are not over, if nobody's lock is held; an error that names who is alive otherwise. */
  async assertNobodyWorks(inOrderTo: string): Promise<readonly WorkerRow[]> {
    const { backend } = this.#wiring;
    const present = await backend.store.workers({});
    const probes = await this.#probe(present);
    for (const [at, worker] of present.entries()) {
      if (probes[at] !== "held") continue;
      throw new OutliveError(
        ErrorCode.wrongState,
        `Worker ${worker.id} (pid ${worker.pid}) is alive on this store.`,
        `Stop all workers to ${inOrderTo}, then try again. Nothing was changed.`,
        { worker: worker.id, pid: worker.pid },
      );
    }
    return present;
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
    const present = await backend.store.workers({});
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
