// The other side of the simulated requests: a server that may or may not have acted when its answer never comes. What is on its way when a process dies still
// arrives. It records everything, and each arrival is shown to the laws at once.
import type { NoAnswer, Wire } from "../../../src/requests/wire.ts";
import type { SimProcess } from "../world/process.ts";
import type { SeededRandom } from "../world/random.ts";
import type { Scheduler } from "../world/scheduler.ts";

export interface Arrival {
  readonly kind: string;
  readonly queue: number;
  readonly n: number;
  /** It was rejected before anything was done: it may be sent again under every policy. */
  readonly rejected: boolean;
}

const HALF_WAY_MS = 40;
const WORKS_MS = 1_500;

export class Remote {
  readonly arrivals: Arrival[] = [];
  readonly #scheduler: Scheduler;
  readonly #random: SeededRandom;
  readonly #arrived: (arrival: Arrival) => void;
  /** From now on every request is answered. */
  isCalm = false;

  constructor(scheduler: Scheduler, random: SeededRandom, arrived: (arrival: Arrival) => void) {
    this.#scheduler = scheduler;
    this.#random = random;
    this.#arrived = arrived;
  }

  hasActedOn(kind: string, n: number): boolean {
    return this.arrivals.some((one) => one.kind === kind && one.n === n && !one.rejected);
  }

  /** The network as one process has it. */
  wireOf(process: SimProcess): Wire {
    return ({ request }, _, deadlineMono) => {
      const [, kind = "", queue = "0", number = "0"] = request.url.pathname.split("/");
      const random = this.#random.fork(`${kind} ${number} ${process.pid} ${this.#scheduler.now}`);
      let resolve!: (end: Awaited<ReturnType<Wire>["ended"]>) => void;
      const ended = new Promise<Awaited<ReturnType<Wire>["ended"]>>((done) => (resolve = done));
      // What comes back comes to the process, if it lives and when it goes on.
      const later = (ms: number, task: () => void): void =>
        void this.#scheduler.at(this.#scheduler.now + ms, process.main, task);
      const none = (sent: boolean, fault: NoAnswer["fault"], message: string): void =>
        resolve({ is: "none", sent, fault, message, status: null });
      const how = this.isCalm
        ? "answered"
        : random.weighted({ answered: 60, refused: 4, rejected: 8, lostOnTheWay: 6, cut: 10, gateway: 6, silent: 6 });
      const leftMs = Math.max(0, deadlineMono - process.main.clock.mono());
      later(leftMs, () => none(true, "timeout", "the request passed its total timeout"));
      if (how === "refused") {
        later(random.next() * HALF_WAY_MS, () => none(false, "network", "connection refused"));
      } else {
        const toMs = random.next() * HALF_WAY_MS;
        const backMs = toMs + (how === "rejected" ? 0 : random.next() * WORKS_MS) + random.next() * HALF_WAY_MS;
        if (how !== "lostOnTheWay")
          this.#scheduler.at(this.#scheduler.now + toMs, null, () => {
            const arrival = { kind, queue: Number(queue), n: Number(number), rejected: how === "rejected" };
            this.arrivals.push(arrival);
            this.#arrived(arrival);
          });
        const answer = (status: number) => ({
          is: "answer" as const,
          status,
          headers: {},
          body: Buffer.from("done"),
          wireBytes: 4,
        });
        if (how === "answered") later(backMs, () => resolve(answer(200)));
        else if (how === "rejected") later(backMs, () => resolve(answer(503)));
        else if (how === "gateway") later(backMs, () => resolve(answer(502)));
        else if (how !== "silent") later(backMs, () => none(true, "network", "the connection broke"));
      }
      return { ended, abort: (fault, message) => none(true, fault, message) };
    };
  }
}
