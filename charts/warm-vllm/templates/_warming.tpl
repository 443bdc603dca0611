{{/* Whether the chart itself writes out sidecar and plugin. */}}
{{- define "warm-vllm.explicit" -}}
{{- if and .Values.warming.enabled (eq .Values.warming.mode "template") }}yes{{ end }}
{{- end }}

{{/* Port of the names of cached blocks; empty where there is none. */}}
{{- define "warm-vllm.warming.blocksPort" -}}
{{- if and .Values.warming.enabled .Values.kvEvents.enabled (include "warm-vllm.engine.kvEventsDialled" .Values.kvEvents.endpoint) }}
{{- with int .Values.kvEvents.blocksPort }}{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "warm-vllm.warming.sidecarImage" -}}
{{- include "warm-vllm.image" (list .Values.warming.sidecar.image .Chart.AppVersion) }}
{{- end }}

{{/* The engine's user; empty where the pod doesn't say it. */}}
{{- define "warm-vllm.engine.user" -}}
{{- $user := dig "runAsUser" nil .Values.podSecurityContext }}
{{- $user = dig "runAsUser" $user .Values.containerSecurityContext }}
{{- if not (kindIs "invalid" $user) }}{{ int64 $user }}{{ end }}
{{- end }}

{{- define "warm-vllm.warming.securityContext" -}}
{{- include "warm-vllm.warming.securityContextOf" .Values.warming.sidecar.runAsUser }}
{{- end }}

{{/* Only the engine's own user may open the socket of its KV events. */}}
{{- define "warm-vllm.warming.sidecarSecurityContext" -}}
{{- $user := "" }}
{{- if include "warm-vllm.engine.kvEventsFolder" . }}{{ $user = include "warm-vllm.engine.user" . }}{{ end }}
{{- include "warm-vllm.warming.securityContextOf" ($user | default .Values.warming.sidecar.runAsUser) }}
{{- end }}

{{- define "warm-vllm.warming.securityContextOf" -}}
runAsNonRoot: true
{{- with . }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
{{- end }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "warm-vllm.warming.containers" -}}
{{- $sidecar := .Values.warming.sidecar -}}
- name: promptprefix-plugin
  image: {{ include "warm-vllm.image" (list .Values.warming.plugin.image .Chart.AppVersion) | quote }}
  imagePullPolicy: {{ $.Values.imagePullPolicy }}
  resources:
    {{- toYaml $sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "warm-vllm.warming.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: promptprefix-plugin, mountPath: /plugin}
- name: promptprefix-key
  image: {{ include "warm-vllm.warming.sidecarImage" . | quote }}
  imagePullPolicy: {{ $.Values.imagePullPolicy }}
  args: [init-key]
  env:
    - {name: PROMPTPREFIX_KEY_FILE, value: /run/promptprefix/key/key}
  resources:
    {{- toYaml $sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "warm-vllm.warming.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: promptprefix-key, mountPath: /run/promptprefix/key}
- name: promptprefix-sidecar
  restartPolicy: Always
  image: {{ include "warm-vllm.warming.sidecarImage" . | quote }}
  imagePullPolicy: {{ $.Values.imagePullPolicy }}
  env:
    {{- include "warm-vllm.warming.env" . | nindent 4 }}
  ports:
    - {name: warming, containerPort: 8090, protocol: TCP}
    {{- with include "warm-vllm.warming.blocksPort" . }}
    - {name: blocks, containerPort: {{ . }}, protocol: TCP}
    {{- end }}
  readinessProbe: {httpGet: {path: /readyz, port: warming}, periodSeconds: 1, timeoutSeconds: 5}
  livenessProbe: {httpGet: {path: /healthz, port: warming}, periodSeconds: 20, timeoutSeconds: 5, failureThreshold: 6}
  resources:
    {{- toYaml $sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "warm-vllm.warming.sidecarSecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: promptprefix-key, mountPath: /run/promptprefix/key, readOnly: true}
    - {name: promptprefix-ca, mountPath: /run/promptprefix/ca, readOnly: true}
    - {name: promptprefix-token, mountPath: /run/promptprefix/token, readOnly: true}
    - {name: promptprefix-tmp, mountPath: /tmp}
    {{- with include "warm-vllm.engine.kvEventsFolder" . }}
    - {name: kv-events, mountPath: {{ . | quote }}, readOnly: true}
    {{- end }}
{{- end }}

{{- define "warm-vllm.warming.env" -}}
{{- $sidecar := .Values.warming.sidecar -}}
- {name: PROMPTPREFIX_CONTROL_URL, value: {{ include "warm-vllm.warming.controlUrl" . | quote }}}
- {name: PROMPTPREFIX_CA_FILE, value: /run/promptprefix/ca/ca.crt}
- {name: PROMPTPREFIX_TOKEN_FILE, value: /run/promptprefix/token/token}
- {name: PROMPTPREFIX_KEY_FILE, value: /run/promptprefix/key/key}
- {name: PROMPTPREFIX_ENGINE_URL, value: {{ printf "http://127.0.0.1:%d" (int .Values.engine.port) | quote }}}
- {name: PROMPTPREFIX_POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: PROMPTPREFIX_LISTEN_HOST, value: {{ $sidecar.listenHost | quote }}}
- {name: PROMPTPREFIX_LEASE_S, value: {{ $sidecar.leaseSeconds | int | quote }}}
- {name: PROMPTPREFIX_READY_TIMEOUT_S, value: {{ $sidecar.readyTimeoutSeconds | toString | quote }}}
- {name: PROMPTPREFIX_READY_SETTLE_S, value: {{ $sidecar.readySettleSeconds | toString | quote }}}
- {name: PROMPTPREFIX_HOLD_S, value: {{ $sidecar.holdSeconds | toString | quote }}}
- {name: PROMPTPREFIX_WARM_TIMEOUT_S, value: {{ $sidecar.warmTimeoutSeconds | toString | quote }}}
- {name: PROMPTPREFIX_WARM_CHUNK_TOKENS, value: {{ $sidecar.warmChunkTokens | int | quote }}}
- {name: PROMPTPREFIX_SOFT_WAIT_S, value: {{ $sidecar.softWaitSeconds | toString | quote }}}
- {name: PROMPTPREFIX_REPORT_INTERVAL_S, value: {{ $sidecar.reportIntervalSeconds | toString | quote }}}
- {name: PROMPTPREFIX_PROBE_INTERVAL_S, value: {{ $sidecar.probeIntervalSeconds | toString | quote }}}
- {name: PROMPTPREFIX_TOUCH_INTERVAL_S, value: {{ $sidecar.touchIntervalSeconds | toString | quote }}}
- {name: PROMPTPREFIX_DIGEST_CHECK_INTERVAL_S, value: {{ $sidecar.digestCheckIntervalSeconds | toString | quote }}}
- {name: PROMPTPREFIX_LOG_LEVEL, value: {{ $sidecar.logLevel }}}
{{- with .Values.apiKey.existingSecret }}
- {name: PROMPTPREFIX_ENGINE_API_KEY, valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.apiKey.secretKey | quote }}}}}
{{- end }}
{{- with .Values.engine.timeZone }}
- {name: TZ, value: {{ . | quote }}}
{{- end }}
{{- if .Values.kvEvents.enabled }}
{{- with include "warm-vllm.engine.kvEventsDialled" .Values.kvEvents.endpoint }}
- {name: PROMPTPREFIX_KV_EVENTS_ENDPOINT, value: {{ . | quote }}}
{{- with include "warm-vllm.engine.kvEventsDialled" (include "warm-vllm.engine.kvEventsReplay" $) }}
- {name: PROMPTPREFIX_KV_EVENTS_REPLAY_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with $.Values.kvEvents.topic }}
- {name: PROMPTPREFIX_KV_EVENTS_TOPIC, value: {{ . | quote }}}
{{- end }}
- {name: PROMPTPREFIX_BLOCKS_PORT, value: {{ include "warm-vllm.warming.blocksPort" $ | default "0" | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/*
The ConfigMap may come after the pod, so it is optional. The key's volume is memory: the key is gone
with the pod and never on a disk.
*/}}
{{- define "warm-vllm.warming.volumes" -}}
- {name: promptprefix-plugin, emptyDir: {sizeLimit: 16Mi}}
- {name: promptprefix-key, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- {name: promptprefix-ca, configMap: {name: promptprefix-ca, optional: true}}
- name: promptprefix-token
  projected: {sources: [{serviceAccountToken: {path: token, audience: promptprefix.dev/control, expirationSeconds: 3600}}]}
- {name: promptprefix-tmp, emptyDir: {}}
{{- end }}

{{- define "warm-vllm.warming.controlUrl" -}}
{{- .Values.warming.sidecar.controlUrl | default (printf "https://promptprefix-operator.%s.svc:8443" .Values.operatorNamespace) }}
{{- end }}

{{/* Port of the control API; 443 where the URL names none. */}}
{{- define "warm-vllm.warming.controlPort" -}}
{{- get (include "warm-vllm.warming.controlUrl" . | urlParse) "host" | regexFind ":[0-9]+$" | trimPrefix ":" | default "443" }}
{{- end }}
