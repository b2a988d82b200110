// Promise 8, the part about lost contact: nothing is counted without a proof of death; a loss resolves once, and truly; and only a
// loss that turned out to be a death is counted, once for each job that was held.
import { LEASE_MS } from "../world/profile.ts";
import type { Model } from "./model.ts";
import type { HistoryRow, IncidentRow, JobRow, WorkerRow } from "./watch.ts";
import { demand } from "./violation.ts";

/** A worker that stays away for this many leases is counted as dead. */
const AWAY_LEASES = 2;

export class LossLaw {
  readonly #model: Model;
  readonly #isAlive: (worker: string) => boolean;
  /** When each loss was first seen, in virtual ms. */
  readonly #since = new Map<string, number>();

  constructor(model: Model, isAlive: (worker: string) => boolean) {
    this.#model = model;
    this.#isAlive = isAlive;
  }

  /** `registered`: the rows of workers that the same event wrote. */
  onIncident(was: IncidentRow | null, is: IncidentRow | null, registered: readonly WorkerRow[], now: number): void {
    if (is && !was && is.how === "gone" && this.#model.workersById.get(is.worker)?.row.state === "live")
      demand(
        !this.#isAlive(is.worker),
        () => `incident ${is.id}: the death of ${is.worker} is called proved, and it lives`,
      );
    if (!is || is.how === "gone") return;
    if (!was) this.#since.set(is.id, now);
    if (!was || was.resolution === is.resolution) return;
    const process = this.#model.workersById.get(is.worker)?.process;
    const says = (): string => `incident ${is.id}: the loss of ${is.worker} was resolved as ${is.resolution}`;
    demand(was.resolution === null, () => `${says()}, and as ${was.resolution} before`);
    if (is.resolution === "died") demand(process?.alive !== true, () => `${says()}, and its process lives`);
    // A loss from before the rows went back was seen by no process of now.
    const since = this.#since.get(is.id);
    if (is.resolution === "away" && since !== undefined) {
      const awayMs = now - since;
      demand(awayMs >= AWAY_LEASES * LEASE_MS, () => `${says()} after ${awayMs.toFixed(1)} ms`);
    }
    if (is.resolution === "returned")
      demand(
        registered.some(({ predecessor }) => predecessor === is.worker),
        () => `${says()}, and no worker names it as its predecessor`,
      );
  }

  /** A crash was counted as the attempt was taken: its worker's death was proved. */
  onCrash(is: JobRow, history: readonly HistoryRow[]): void {
    const entry = history.find((row) => row.job === is.seq && row.event === "crash" && row.fence === is.fence);
    const incident = this.#model.incidents.get(entry?.incident ?? "");
    demand(
      incident === undefined || incident.how === "gone",
      () => `a crash of job ${is.id} was counted, and its worker ${incident?.worker} was only ${incident?.how}`,
    );
  }

  /** The attempt was taken from its worker without a proof: its job pays nothing, whatever becomes of the worker later. */
  onLost(was: JobRow, is: JobRow, history: readonly HistoryRow[]): void {
    const entry = history.find((row) => row.job === is.seq && row.event === "lose" && row.fence === is.fence);
    const incident = this.#model.incidents.get(entry?.incident ?? "");
    demand(
      incident !== undefined && incident.how !== "gone",
      () => `job ${is.id} was lost in an incident that is ${incident?.how ?? "missing"}`,
    );
    demand(
      is.losses === was.losses + 1,
      () => `job ${is.id} was lost, and its losses went from ${was.losses} to ${is.losses}`,
    );
  }

  /** A job that is queued or runs lost one of its losses. */
  onJudged(was: JobRow, is: JobRow, history: readonly HistoryRow[]): void {
    const entry = history.find(
      (row) => row.job === is.seq && (row.event === "countLoss" || row.event === "forgetLoss"),
    );
    const incident = this.#model.incidents.get(entry?.incident ?? "");
    const says = (): string => `a loss of job ${is.id} was judged (${entry?.event ?? "without a word"})`;
    demand(entry !== undefined && incident !== undefined, says);
    demand(incident.resolution !== null, () => `${says()} before it was resolved`);
    demand(
      (entry.event === "countLoss") === (incident.resolution !== "returned"),
      () => `${says()}, and its worker ${incident.worker} was ${incident.resolution}`,
    );
    demand(
      is.crashes - was.crashes === (entry.event === "countLoss" ? 1 : 0),
      () => `${says()}, and its crashes went from ${was.crashes} to ${is.crashes}`,
    );
  }

  wentBack(): void {
    this.#since.clear();
  }
}
