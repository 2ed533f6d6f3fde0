// The search runs in a worker, and a page that was opened from the disk may start none: there a hidden frame does it.
// Material's offline plugin would load such a stand-in from the network; it looks for this file's name before it does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise((done) => {
        const script = this.scope.document.createElement("script");
        script.onload = done;
        script.src = url;
        this.scope.document.body.append(script);
      });
    }
    postMessage(data) {
      this.started.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
