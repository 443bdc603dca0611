{{/* The flags, as a YAML list. Those of the plugin come last, where the webhook puts them too. */}}
{{- define "warm-vllm.engine.args" -}}
{{- $engine := .Values.engine }}
{{- $args := eq (last $engine.command) "serve" | ternary (list .Values.model.name) (list "--model" .Values.model.name) }}
{{- $args = concat $args (list "--served-model-name" (include "warm-vllm.servedName" .)) }}
{{- with .Values.model.revision }}
{{- $args = concat $args (list "--revision" .) }}
{{- end }}
{{- $args = concat $args (list "--host" "0.0.0.0" "--port" (toString $engine.port)) }}
{{- $args = concat $args (list "--dtype" $engine.dtype) }}
{{- $args = concat $args (list "--tensor-parallel-size" (toString $engine.tensorParallelSize)) }}
{{- if $engine.maxModelLen }}
{{- $args = concat $args (list "--max-model-len" (toString (int $engine.maxModelLen))) }}
{{- end }}
{{- if $engine.gpuMemoryUtilization }}
{{- $args = concat $args (list "--gpu-memory-utilization" (toString $engine.gpuMemoryUtilization)) }}
{{- end }}
{{- if $engine.blockSize }}
{{- $args = concat $args (list "--block-size" (toString $engine.blockSize)) }}
{{- end }}
{{- $args = append $args "--enable-prefix-caching" }}
{{- if $engine.excludeToolsWhenToolChoiceNone }}
{{- $args = append $args "--exclude-tools-when-tool-choice-none" }}
{{- end }}
{{- if .Values.kvEvents.enabled }}
{{- $args = concat $args (list "--kv-events-config" (include "warm-vllm.engine.kvEvents" .)) }}
{{- end }}
{{- if .Values.offload.sizeGiB }}
{{- $args = concat $args (list "--kv-offloading-size" (toString .Values.offload.sizeGiB)) }}
{{- end }}
{{- if .Values.drain.shutdownTimeoutSeconds }}
{{- $args = concat $args (list "--shutdown-timeout" (toString (int .Values.drain.shutdownTimeoutSeconds))) }}
{{- end }}
{{- $args = concat $args $engine.extraArgs }}
{{- if include "warm-vllm.explicit" . }}
{{- $args = concat $args (list "--scheduler-cls" "promptprefix_vllm.scheduler.scheduler_class") }}
{{- end }}
{{- toYaml $args }}
{{- end }}

{{- define "warm-vllm.engine.kvEvents" -}}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq" "topic" .Values.kvEvents.topic "endpoint" .Values.kvEvents.endpoint }}
{{- with include "warm-vllm.engine.kvEventsReplay" . }}
{{- $_ := set $events "replay_endpoint" . }}
{{- end }}
{{- toJson $events }}
{{- end }}

{{/* Where lost events come from: as given, else a socket beside the other one. */}}
{{- define "warm-vllm.engine.kvEventsReplay" -}}
{{- if or .Values.kvEvents.replayEndpoint (not (hasPrefix "ipc://" .Values.kvEvents.endpoint)) }}
{{- .Values.kvEvents.replayEndpoint }}
{{- else }}
{{- printf "%s-replay" .Values.kvEvents.endpoint }}
{{- end }}
{{- end }}

{{/* Folder of the ipc sockets; empty for other endpoints. */}}
{{- define "warm-vllm.engine.kvEventsFolder" -}}
{{- if .Values.kvEvents.enabled }}
{{- $folders := list }}
{{- range list .Values.kvEvents.endpoint (include "warm-vllm.engine.kvEventsReplay" .) }}
  {{- if hasPrefix "ipc://" . }}{{ $folders = append $folders (trimPrefix "ipc://" . | dir) }}{{ end }}
{{- end }}
{{- $folders | first | default "" }}
{{- end }}
{{- end }}

{{/* Where the sidecar reaches what the engine binds at the given endpoint; empty if nowhere. */}}
{{- define "warm-vllm.engine.kvEventsDialled" -}}
{{- if hasPrefix "ipc://" . }}{{ . }}{{ else if hasPrefix "tcp://*:" . }}{{ replace "*" "127.0.0.1" . }}{{ end }}
{{- end }}

{{/*
Everything that vLLM and its libraries write goes under HOME and /tmp. USER, because torch asks for
the user's name, which an arbitrary user id may not have.
*/}}
{{- define "warm-vllm.engine.ownEnv" -}}
{{- $home := .Values.workspace.mountPath -}}
- {name: HOME, value: {{ $home | quote }}}
- {name: USER, value: vllm}
- {name: HF_HOME, value: {{ .Values.modelCache.mountPath | quote }}}
- {name: XDG_CACHE_HOME, value: {{ printf "%s/.cache" $home | quote }}}
- {name: XDG_CONFIG_HOME, value: {{ printf "%s/.config" $home | quote }}}
- {name: VLLM_CACHE_ROOT, value: {{ printf "%s/.cache/vllm" $home | quote }}}
- {name: VLLM_CONFIG_ROOT, value: {{ printf "%s/.config/vllm" $home | quote }}}
- {name: TRITON_CACHE_DIR, value: {{ printf "%s/.cache/triton" $home | quote }}}
- {name: TORCHINDUCTOR_CACHE_DIR, value: {{ printf "%s/.cache/inductor" $home | quote }}}
- {name: CUDA_CACHE_PATH, value: {{ printf "%s/.cache/cuda" $home | quote }}}
- {name: NUMBA_CACHE_DIR, value: {{ printf "%s/.cache/numba" $home | quote }}}
{{- if .Values.modelCache.readOnly }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- with .Values.engine.timeZone }}
- {name: TZ, value: {{ . | quote }}}
{{- end }}
{{- with .Values.apiKey.existingSecret }}
- {name: VLLM_API_KEY, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.apiKey.secretKey | quote }}}}}
{{- end }}
{{- with .Values.hfToken.existingSecret }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.hfToken.secretKey | quote }}}}}
{{- end }}
{{- if .Values.warming.enabled }}
- {name: PROMPTPREFIX_PIN_BUDGET, value: {{ .Values.warming.pinBudget | toString | quote }}}
- {name: PROMPTPREFIX_WARMUP_HOLD_SECONDS, value: {{ .Values.warming.warmupHoldSeconds | toString | quote }}}
{{- end }}
{{- if include "warm-vllm.explicit" . }}
- {name: PROMPTPREFIX_KEY_FILE, value: /run/promptprefix/key/key}
- {name: PYTHONPATH, value: {{ include "warm-vllm.engine.pythonPath" . | quote }}}
{{- end }}
{{- end }}

{{/*
The plugin's folder, and behind it what envFrom may say: the kubelet leaves a reference to an unknown
variable as it is, and Python passes over a folder that does not exist.
*/}}
{{- define "warm-vllm.engine.pythonPath" -}}
/opt/promptprefix
{{- range .Values.engine.envFrom }}
  {{- if hasPrefix (.prefix | default "") "PYTHONPATH" }}:$(PYTHONPATH){{ break }}{{ end }}
{{- end }}
{{- end }}

{{/* The chart's variables without those that engine.env sets, then engine.env. */}}
{{- define "warm-vllm.engine.env" -}}
{{- $given := dict }}
{{- range .Values.engine.env }}
{{- $_ := set $given .name . }}
{{- end }}
{{- $result := list }}
{{- range include "warm-vllm.engine.ownEnv" . | fromYamlArray }}
  {{- if not (hasKey $given .name) }}
    {{- $result = append $result . }}
  {{- end }}
{{- end }}
{{- range .Values.engine.env }}
  {{- if and (eq .name "PYTHONPATH") (include "warm-vllm.explicit" $) }}
    {{- $path := .value | default "" }}
    {{- with .valueFrom }}
      {{- $path = "$(PROMPTPREFIX_PYTHONPATH)" }}
      {{- $result = append $result (dict "name" "PROMPTPREFIX_PYTHONPATH" "valueFrom" .) }}
    {{- end }}
    {{- $result = append $result (dict "name" "PYTHONPATH" "value" (list "/opt/promptprefix" $path | compact | join ":")) }}
  {{- else }}
    {{- $result = append $result . }}
  {{- end }}
{{- end }}
{{- toYaml $result }}
{{- end }}

{{- define "warm-vllm.engine.mounts" -}}
- {name: models, mountPath: {{ .Values.modelCache.mountPath | quote }}, readOnly: {{ .Values.modelCache.readOnly }}}
- {name: workspace, mountPath: {{ .Values.workspace.mountPath | quote }}}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- with include "warm-vllm.engine.kvEventsFolder" . }}
- {name: kv-events, mountPath: {{ . | quote }}}
{{- end }}
{{- if include "warm-vllm.explicit" . }}
- {name: promptprefix-plugin, mountPath: /opt/promptprefix, readOnly: true}
- {name: promptprefix-key, mountPath: /run/promptprefix/key, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "warm-vllm.engine.volumes" -}}
- name: models
  {{- if .Values.modelCache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.modelCache.existingClaim | quote }}, readOnly: {{ .Values.modelCache.readOnly }}}
  {{- else }}
  emptyDir: {{ with .Values.modelCache.sizeLimit }}{sizeLimit: {{ . | quote }}}{{ else }}{}{{ end }}
  {{- end }}
- name: workspace
  {{- if .Values.workspace.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.workspace.existingClaim | quote }}}
  {{- else }}
  emptyDir: {{ with .Values.workspace.sizeLimit }}{sizeLimit: {{ . | quote }}}{{ else }}{}{{ end }}
  {{- end }}
- {name: tmp, emptyDir: {}}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.shmSize | quote }}}}
{{- if include "warm-vllm.engine.kvEventsFolder" . }}
- {name: kv-events, emptyDir: {sizeLimit: 1Mi}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The sleep action is on by default since Kubernetes 1.30; before, the image's own program sleeps. */}}
{{- define "warm-vllm.engine.lifecycle" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}
preStop: {sleep: {seconds: {{ .Values.drain.preStopSeconds }}}}
{{- else -}}
preStop: {exec: {command: [sleep, {{ .Values.drain.preStopSeconds | toString | quote }}]}}
{{- end }}
{{- end }}
