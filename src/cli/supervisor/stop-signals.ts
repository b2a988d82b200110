// What a signal to stop means. Terminals, npm, process managers and a container's init often send one twice, once to the process and once to
// its group: two within 500 ms are one request. Whoever means it a second time sends it later.

const SAME_MS = 500;

export class StopSignals {
  #firstMono: number | null = null;

  /** `first`: stop and let running jobs finish. `same`: nothing new. `again`: end at once. */
  heard(mono: number): "first" | "same" | "again" {
    if (this.#firstMono === null) {
      this.#firstMono = mono;
      return "first";
    }
    return mono - this.#firstMono < SAME_MS ? "same" : "again";
  }
}
