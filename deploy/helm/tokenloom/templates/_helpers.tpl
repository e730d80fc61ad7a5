{{- define "tokenloom.fullname" -}}
{{- if contains "tokenloom" .Release.Name -}}
{{- .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-tokenloom" (.Release.Name | trunc 37 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "tokenloom.selectorLabels" -}}
app.kubernetes.io/name: tokenloom
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenloom.labels" -}}
{{ include "tokenloom.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "tokenloom.metadata" -}}
name: {{ include "tokenloom.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "tokenloom.labels" . | nindent 2 }}
{{- end -}}

{{- define "tokenloom.pickerLabels" -}}
app.kubernetes.io/name: tokenloom-endpoint-picker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenloom.pickerName" -}}
{{ include "tokenloom.fullname" . }}-endpoint-picker
{{- end -}}

{{- define "tokenloom.pickerMetadata" -}}
name: {{ include "tokenloom.pickerName" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "tokenloom.pickerLabels" . | nindent 2 }}
{{- end -}}

{{- define "tokenloom.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not 80: below 1024 some container runtimes require a capability. */}}
{{- define "tokenloom.port" -}}8080{{- end -}}

{{/* preStop, drain, the last responses (10 s), and the end of the engine. */}}
{{- define "tokenloom.gracePeriod" -}}
{{ add .Values.shutdown.preStopSeconds .Values.shutdown.drainSeconds 20 }}
{{- end -}}

{{- define "tokenloom.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Loading a model takes minutes: pods are added quickly and removed slowly. */}}
{{- define "tokenloom.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 30
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: 600
  policies:
    - {type: Pods, value: 1, periodSeconds: 120}
{{- end -}}

{{- define "tokenloom.hubTokenEnv" -}}
- name: HF_TOKEN_PATH
  value: /var/run/tokenloom/hub-token/token
{{- end -}}

{{- define "tokenloom.hubTokenMount" -}}
- {name: hub-token, mountPath: /var/run/tokenloom/hub-token, readOnly: true}
{{- end -}}

{{- define "tokenloom.secretVolumes" -}}
{{- if .Values.apiKey.secretName }}
- name: api-key
  secret:
    secretName: {{ .Values.apiKey.secretName }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.apiKey.secretKey | quote }}, path: api-key}
{{- end }}
{{- if .Values.hubToken.secretName }}
- name: hub-token
  secret:
    secretName: {{ .Values.hubToken.secretName }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.hubToken.secretKey | quote }}, path: token}
{{- end }}
{{- end -}}

{{- define "tokenloom.cacheVolume" -}}
{{- with .Values.modelCache -}}
- name: data
{{- if eq .type "emptyDir" }}
  emptyDir:
    sizeLimit: {{ .size }}
{{- else if eq .type "ephemeral" }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
{{- else }}
  persistentVolumeClaim:
    claimName: {{ .existingClaim | default (include "tokenloom.fullname" $) }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The init container that downloads the model, with the server's image. */}}
{{- define "tokenloom.download" -}}
- name: download
  image: {{ include "tokenloom.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [hf, download]
  args:
    - {{ .Values.model.id | quote }}
    {{- with .Values.model.revision }}
    - --revision={{ . }}
    {{- end }}
    # The files that the server loads.
    {{- range list "*.json" "*.safetensors" "*.model" "*.txt" "*.jinja" "*.py" }}
    - --include={{ . }}
    {{- end }}
  {{- if or .Values.hubToken.secretName .Values.env }}
  env:
    {{- if .Values.hubToken.secretName }}
    {{- include "tokenloom.hubTokenEnv" . | nindent 4 }}
    {{- end }}
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "tokenloom.securityContext" . | nindent 4 }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  volumeMounts:
    - {name: data, mountPath: /data}
    - {name: tmp, mountPath: /tmp}
    {{- if .Values.hubToken.secretName }}
    {{- include "tokenloom.hubTokenMount" . | nindent 4 }}
    {{- end }}
{{- end -}}
